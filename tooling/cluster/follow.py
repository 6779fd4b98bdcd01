"""The output of a job: each line behind the name of its node goes to the log file, and to the terminal.

Also used for jobs on hosts (tooling.hosts.output).
"""

import math
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from cpu_train_stack.cli.printable import output_line
from cpu_train_stack.cli.say import say
from tooling.basis.paths import shown
from tooling.cluster.nodes import PROJECT_LABEL, SERVICE_LABEL, detect_lost_engine
from tooling.engine import failures
from tooling.engine.client import connect

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container

# After the job, wait at most this long for further lines, and for a terminal that takes none.
END_SECONDS = 10.0
# After the job, wait at most this long for the end of the output, also if lines come.
LAST_SECONDS = 300.0
# While the job runs, wait at most this long for a terminal that is WAITING_LINES behind. Shorter than END_SECONDS.
SLOW_SECONDS = 2.0
WAITING_LINES = 100_000
# The time between two attempts to continue reading from a lost engine.
AGAIN_SECONDS = 1.0
# Longer lines are split. Those of progress bars, which return to the start of the line, are split sooner.
LONGEST_LINE = 1 << 16
LONGEST_PROGRESS = 1 << 10


class Log:
    """Reads streams of lines in threads and writes them to the end of a file. One more thread shows the lines.

    The file gets all lines whatever the terminal does. If the file or the terminal fails, this is reported once,
    and the other one still gets all lines. `failed`: the file lacks lines.
    """

    def __init__(self, path: Path, terminal: BinaryIO) -> None:
        self.failed = False
        self._path, self._file = shown(path), path.open("ab", buffering=0)
        self._lock = threading.Lock()
        self._waiting: queue.Queue[bytes | None] = queue.Queue(WAITING_LINES)
        self._written = self._taken = 0
        self._slow = self._closed = False
        self._readers: list[threading.Thread] = []
        self._shower = threading.Thread(target=self._show_all, args=(terminal,), daemon=True)
        self._shower.start()

    def read(self, stream: Iterable[bytes], show: Callable[[bytes], object] | None = None) -> None:
        """Start to read a stream. `show` gets each line, one at a time; without it, all lines are shown."""
        self._readers.append(threading.Thread(target=self._read, args=(stream, show or self.show), daemon=True))
        self._readers[-1].start()

    def show(self, line: bytes) -> None:
        """Queue a line for the terminal. If the queue stays full for SLOW_SECONDS, drop the line."""
        try:
            self._waiting.put(line, timeout=0 if self._slow else SLOW_SECONDS)
        except queue.Full:
            self._slow = True

    def wait(self) -> None:
        """Wait for the end of the streams, as long as lines come. No line is written afterwards."""
        deadline = time.monotonic() + LAST_SECONDS
        ended = [_has_ended(reader, lambda: self._written, deadline) for reader in self._readers]
        with self._lock:
            self._closed = True
        if not all(ended):
            say(f"{self._path}: the last lines may be missing: the output of the job has not ended")

    def flush(self) -> None:
        """Wait until all lines are shown, as long as the terminal takes lines. No line is shown afterwards."""
        with suppress(queue.Full):
            self._waiting.put(None, timeout=END_SECONDS)
        if not _has_ended(self._shower, lambda: self._taken) or self._slow:
            say(f"not all lines could be shown: see {self._path}")

    def close(self) -> None:
        """Write no more lines. Those in the queue are still shown."""
        with self._lock, suppress(OSError):
            self._closed = True
            self._file.close()
        with suppress(queue.Full):
            self._waiting.put_nowait(None)

    def _read(self, stream: Iterable[bytes], show: Callable[[bytes], object]) -> None:
        for line in stream:
            with self._lock:
                if self._closed:
                    return
                self._write(line)
                show(line)
                self._written += 1

    def _write(self, line: bytes) -> None:
        try:
            if not self.failed:
                _write(self._file.write, line)
        except OSError as error:
            self.failed = True
            say(f"{self._path}: {error.strerror}: the job continues, and its further lines are only shown here")

    def _show_all(self, terminal: BinaryIO) -> None:
        # Without a buffer, whose lock would block the end of the process while the terminal is stuck.
        write, display = getattr(terminal, "raw", terminal).write, shown_on(terminal)
        works = True
        for line in iter(self._waiting.get, None):
            try:
                if works:
                    _write(write, display(line))
            except OSError as error:
                works = False
                say(f"the output cannot be shown ({error.strerror}): the job continues, see {self._path}")
            self._taken += 1


def _write(write: Callable[[bytes], int | None], line: bytes) -> None:
    """Write to a file without a buffer, which may take only a part or, if it does not block, nothing."""
    while line:
        taken = write(line)
        if taken is None:
            time.sleep(0.1)
        line = line[taken or 0 :]


def _has_ended(thread: threading.Thread, progress: Callable[[], int], deadline: float = math.inf) -> bool:
    """Whether a thread has ended. Wait for it at most END_SECONDS without progress, and until the deadline."""
    before = -1
    while thread.is_alive() and before != progress() and time.monotonic() < deadline:
        before = progress()
        thread.join(END_SECONDS)
    return not thread.is_alive()


@contextmanager
def following(endpoint: str, project: str, log: Path, terminal: BinaryIO) -> Iterator[None]:
    """Copy the output of the project's containers, from its beginning, to `terminal` and to the end of `log`."""
    with detect_lost_engine(endpoint):
        client = connect(endpoint)
        containers = _containers(client, project)
    over, output = threading.Event(), Log(log, terminal)
    try:
        for container in containers:
            output.read(_lines(container, _output(container, over)))
        yield
        output.wait()
        output.flush()
    finally:
        over.set()
        output.close()
        client.close()


def copy(endpoint: str, project: str, terminal: BinaryIO, *, follow: bool = False) -> None:
    """Copy the output of the project's containers so far or, with `follow`, until they end."""
    with detect_lost_engine(endpoint), closing(connect(endpoint)) as client:
        containers = sorted(_containers(client, project), key=lambda container: str(container.name))
        if follow:
            over = threading.Event()
            over.set()  # do not wait for an engine that is lost
            copy_lines([_lines(container, _output(container, over)) for container in containers], terminal)
            return
        for container in containers:
            with suppress(failures.APIError):  # the container was removed, or its engine keeps no output
                output = _lines(container, container.logs(stream=True, follow=False))
                terminal.writelines(map(shown_on(terminal), output))


def copy_lines(streams: Iterable[Iterable[bytes]], terminal: BinaryIO) -> None:
    """Copy the lines of several streams as they come, until all have ended."""
    found: queue.Queue[bytes | None] = queue.Queue(1000)

    def read(stream: Iterable[bytes]) -> None:
        try:
            for line in stream:
                found.put(line)
        finally:
            found.put(None)

    # Daemons: Ctrl-C and a closed pipe end the command, although they still read.
    readers = [threading.Thread(target=read, args=(stream,), daemon=True) for stream in streams]
    for reader in readers:
        reader.start()
    display = shown_on(terminal)
    for _ in readers:
        for line in iter(found.get, None):
            terminal.write(display(line))
            terminal.flush()


def copy_log(log: BinaryIO, terminal: BinaryIO, *, grows: bool = False) -> None:
    """Copy the rest of a log file. If it `grows`, a line that has no end yet is left for the next call."""
    display = shown_on(terminal)
    for line in log:
        if grows and not line.endswith(b"\n"):
            log.seek(-len(line), os.SEEK_CUR)
            break
        terminal.write(display(line))
    terminal.flush()


def shown_on(terminal: BinaryIO) -> Callable[[bytes], bytes]:
    """Replaces control characters in a job's line for a terminal. Files and pipes get the line as it is."""
    return output_line if terminal.isatty() else lambda line: line


def lines(name: str, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a stream of chunks, each behind `name` and with a newline at its end.

    Long lines are split, those of progress bars after a `\r`.
    """
    prefix = f"{name} | ".encode()
    rest = bytearray()
    for chunk in chunks:
        *ends, start = chunk.split(b"\n")
        for end in ends:
            yield prefix + rest + end + b"\n"
            rest.clear()
        rest += start
        split = rest.rfind(b"\r") + 1 if len(rest) > LONGEST_PROGRESS else 0
        if split or len(rest) > LONGEST_LINE:
            split = split or len(rest)
            yield prefix + rest[:split] + b"\n"
            del rest[:split]
    if rest:
        yield prefix + rest + b"\n"


def _containers(client: "DockerClient", project: str) -> "list[Container]":
    return list(client.containers.list(all=True, filters={"label": f"{PROJECT_LABEL}={project}"}))


def _lines(container: "Container", chunks: Iterable[bytes]) -> Iterator[bytes]:
    return lines(container.labels[SERVICE_LABEL], chunks)


def _output(container: "Container", over: threading.Event) -> Iterator[bytes]:
    """The output of a container until its end. A lost engine is tried again until `over`."""
    lost = False

    def read() -> Iterator[bytes]:
        nonlocal lost
        try:
            yield from container.logs(stream=True, follow=True)
            lost = False
        except failures.APIError:
            raise
        except (OSError, failures.HTTPError):
            lost = True

    def goes_on() -> bool:
        try:
            container.reload()
            if not lost and container.status not in ("running", "paused"):
                return False
        except failures.APIError:
            raise
        except (OSError, failures.HTTPError):
            pass  # the engine is lost: try again
        return not over.wait(AGAIN_SECONDS)

    with suppress(failures.APIError):  # the container was removed; wait.until_end reports its end
        yield from unrepeated(read, goes_on)


def unrepeated(
    read: Callable[[], Iterable[bytes]], goes_on: Callable[[], bool], broken: re.Pattern[bytes] | None = None
) -> Iterator[bytes]:
    """The output of a container that is read again as long as it `goes_on`, without repetitions.

    `read` returns the output from its first byte. `broken`: a last line that is not the container's.
    """
    seen = 0
    while True:
        repeated, last = seen, b""
        for chunk in read():
            new = chunk[repeated:]
            repeated -= len(chunk) - len(new)
            seen += len(new)
            last = (last + new)[-1000:]
            yield new
        if broken and (found := broken.search(last)):
            seen -= len(found[0])
        if not goes_on():
            return
