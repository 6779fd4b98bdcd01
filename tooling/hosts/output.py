"""The output of a job: all lines go to the log, and rank 0's lines are shown at once."""

import re
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from tooling.cluster.follow import lines
from tooling.hosts import container
from tooling.hosts.remote import Remote

LAST_LINES = 3
END_SECONDS = 10.0
# mpirun's -prepend-rank.
_RANK = re.compile(rb"\[(\d+)\] ")


class Output:
    """Reads the output of the containers. `show` gets each line to display, behind its host's name.

    Lines of ranks other than 0 are shown at the end: the last ones, or after a failure all of them.
    """

    def __init__(self, log: Path, show: Callable[[bytes], object]) -> None:
        self._log, self._show = log, show
        self._file = log.open("wb")
        self._lock = threading.Lock()
        self._last: dict[str, deque[bytes]] = {}
        self._readers: list[threading.Thread] = []

    def read(self, remote: Remote, name: str, has_rank_0: bool) -> None:
        """Start to read the output of the container `name`."""
        target = (remote, name, has_rank_0)
        self._readers.append(threading.Thread(target=self._copy, args=target, daemon=True))
        self._readers[-1].start()

    def wait(self) -> None:
        """Wait until the complete output of the containers, which have ended, is read."""
        for reader in self._readers:
            reader.join(END_SECONDS)

    def close(self, failed: bool) -> None:
        """Show the lines that are still hidden: the last ones of each rank, or all of them if the job failed."""
        with self._lock:
            self._file.close()
        if not failed:
            for source in sorted(self._last):
                for line in self._last[source]:
                    self._show(line)
            return
        with self._log.open("rb") as file:  # its lines end at \n only: progress bars contain \r
            for line in file:
                host, _, rest = line.partition(b" | ")
                if self._source(host.decode(errors="replace"), rest) in self._last:
                    self._show(line)

    def _copy(self, remote: Remote, name: str, has_rank_0: bool) -> None:
        for line in lines(container.output(remote, name)):
            with self._lock:
                if self._file.closed:
                    return
                prefixed = f"{remote.name} | ".encode() + line
                self._file.write(prefixed)
                self._file.flush()
                source = self._source(remote.name, line)
                if has_rank_0 and source == remote.name:
                    self._show(prefixed)
                else:
                    self._last.setdefault(source, deque(maxlen=LAST_LINES)).append(prefixed)

    def _source(self, host: str, line: bytes) -> str:
        """The host, with the rank if mpirun names one other than 0."""
        rank = _RANK.match(line)
        return host if rank is None or rank[1] == b"0" else f"{host} {rank[1].decode().zfill(5)}"
