"""An ssh session to each host while the job runs: the host removes its container when the session ends.

./inv sends a line every few seconds, and the host answers. A host that does not answer is lost. A host that
receives no line, because ./inv was killed or its machine is down, removes its container.
"""

import select
import subprocess
import threading
import time
from collections.abc import Callable
from typing import IO

from tooling.engine.ssh import Remote, RemoteError
from tooling.engine.ssh_causes import shorten
from tooling.hosts import commands

BEAT_SECONDS = 5.0
LOST_SECONDS = 20.0
# For `docker stop` and `docker rm`.
END_SECONDS = 3.0 * commands.STOP_SECONDS
_MESSAGE_BYTES = 1 << 16


class Keeper:
    """Keeps the container of a host alive; calls `lost` with the reason when the host stops answering."""

    def __init__(self, remote: Remote, container: str, lost: Callable[[str], None]) -> None:
        self._session = remote.start(commands.keep(container), subprocess.PIPE)
        try:
            self._await_answer()
        except TimeoutError as error:
            raise RemoteError(str(error)) from None
        except EOFError as error:
            raise RemoteError(f"bash is required on the host: {shorten(self._message()) or error}") from None
        self._lost = lost
        self._ending = threading.Event()
        self.is_lost = False
        threading.Thread(target=self._beat, daemon=True).start()

    def end(self) -> None:
        """Ask the host to remove the container. removed() returns whether the host has removed it."""
        self._ending.set()
        self._session.stdin.close()

    def removed(self) -> bool:
        """Wait until the container is removed. False if the host does not confirm this in time."""
        try:
            return not self.is_lost and self._session.process.wait(END_SECONDS) == 0
        except subprocess.TimeoutExpired:
            return False

    def _message(self) -> str:
        """What the host prints on standard error: at most _MESSAGE_BYTES, and for at most LOST_SECONDS."""
        stream, found, deadline = self._session.process.stderr, b"", time.monotonic() + LOST_SECONDS
        while stream and len(found) < _MESSAGE_BYTES and _has_input(stream, deadline - time.monotonic()):
            if not (chunk := stream.read(_MESSAGE_BYTES)):
                break
            found += chunk
        return found.decode(errors="replace")

    def _await_answer(self) -> None:
        if not _has_input(self._session.stdout, LOST_SECONDS):
            raise TimeoutError(f"no answer for {LOST_SECONDS:.0f} s")
        if not self._session.stdout.read(1):
            raise EOFError("the connection broke")

    def _beat(self) -> None:
        try:
            while not self._ending.is_set():
                self._session.stdin.write(b"\n")
                self._await_answer()
                self._ending.wait(BEAT_SECONDS)
        except (OSError, EOFError, ValueError) as error:  # ValueError: end() has closed the pipe
            if not self._ending.is_set():
                self.is_lost = True
                self._lost("the connection broke" if isinstance(error, BrokenPipeError) else str(error))


def _has_input(stream: IO[bytes], seconds: float) -> bool:
    """Whether there is something to read, or the end, within `seconds`."""
    answer = select.poll()  # select() fails with file 1024
    answer.register(stream, select.POLLIN)
    return bool(answer.poll(max(0.0, seconds) * 1000))
