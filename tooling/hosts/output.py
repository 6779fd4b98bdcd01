"""The output of a job: all of it in its log, rank 0's shown as it comes, of the others what one needs to see."""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from tooling.cluster.follow import lines
from tooling.hosts import state
from tooling.hosts.remote import Remote

LAST_LINES = 3
END_SECONDS = 10.0
# mpirun's -prepend-rank.
_RANK = re.compile(rb"\[(\d+)\] ")

Show = Callable[[bytes], None]


class Output:
    """Reads the containers' logs. What is not rank 0's is shown at the end: last lines, or all after a failure.

    In the log each line is behind its host's name.
    """

    def __init__(self, log: Path, show: Show) -> None:
        self._log, self._show = log, show
        self._file = log.open("wb")
        self._lock = threading.Lock()
        self._last: dict[str, deque[bytes]] = {}
        self._readers: list[threading.Thread] = []

    def read(self, remote: Remote, container: str, first: bool) -> None:
        """Begins to read one container's output; `first`: rank 0's is in it."""
        target = (remote, container, first)
        self._readers.append(threading.Thread(target=self._copy, args=target, daemon=True))
        self._readers[-1].start()

    def wait(self) -> None:
        """Until all that the containers have printed is read; they have ended."""
        for reader in self._readers:
            reader.join(END_SECONDS)

    def close(self, failed: bool) -> None:
        """Shows what has not been shown yet."""
        with self._lock:
            self._file.close()
        hidden = sorted(self._last)
        if failed and hidden:
            for line in self._log.read_bytes().splitlines(keepends=True):
                host, _, rest = line.partition(b" | ")
                if self._key(host.decode(errors="replace"), rest) in hidden:
                    self._show(line)
            return
        for key in hidden:
            for line in self._last[key]:
                self._show(line)

    def _copy(self, remote: Remote, container: str, first: bool) -> None:
        for line in lines(state.output(remote, container)):
            with self._lock:
                if self._file.closed:
                    return
                whole = f"{remote.name} | ".encode() + line
                self._file.write(whole)
                self._file.flush()
                key = self._key(remote.name, line)
                if first and key == remote.name:
                    self._show(whole)
                else:
                    self._last.setdefault(key, deque(maxlen=LAST_LINES)).append(whole)

    def _key(self, host: str, line: bytes) -> str:
        """The host, and behind it the rank where mpirun says that it is not rank 0's."""
        rank = _RANK.match(line)
        return host if rank is None or rank[1] == b"0" else f"{host} {rank[1].decode().zfill(5)}"
