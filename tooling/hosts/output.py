"""The output of a job: all lines go to the log, and rank 0's lines are shown at once."""

import re
from collections import deque
from pathlib import Path
from typing import BinaryIO

from tooling.cluster.follow import Log, lines
from tooling.engine.ssh import Remote
from tooling.hosts import container

LAST_LINES = 3
# mpirun's -prepend-rank.
_RANK = re.compile(rb"\[(\d+)\] ")


class Output:
    """Reads the output of the containers, and writes it to the end of `log`, each line behind its host's name.

    Lines of ranks other than 0 are shown at the end: the last ones, or after a failure all of them.
    """

    def __init__(self, log: Path, terminal: BinaryIO) -> None:
        self._path, self._log = log, Log(log, terminal)
        self._first = ""
        self._last: dict[str, deque[bytes]] = {}

    def read(self, remote: Remote, name: str, has_rank_0: bool) -> None:
        """Start to read the output of the container `name`."""
        if has_rank_0:
            self._first = remote.name
        self._log.read(lines(remote.name, container.output(remote, name)), self._show)

    def wait(self) -> None:
        """Wait until the complete output of the containers, which have ended, is read."""
        self._log.wait()

    def close(self, failed: bool) -> None:
        """Show the lines that are still hidden: the last ones of each rank, or all of them if the job failed."""
        if failed and not self._log.failed:
            with self._path.open("rb") as file:  # its lines end at \n only: progress bars contain \r
                for line in file:
                    if _source(line) != self._first:
                        self._log.show(line)
        else:
            for _, last in sorted(self._last.items()):
                for line in last:
                    self._log.show(line)
        self._log.flush()
        self._log.close()

    def _show(self, line: bytes) -> None:
        source = _source(line)
        if source == self._first:
            self._log.show(line)
        else:
            self._last.setdefault(source, deque(maxlen=LAST_LINES)).append(line)


def _source(line: bytes) -> str:
    """The host, with the rank if mpirun names one other than 0."""
    name, _, rest = line.partition(b" | ")
    host, rank = name.decode(errors="replace"), _RANK.match(rest)
    return host if rank is None or rank[1] == b"0" else f"{host} {rank[1].decode().zfill(5)}"
