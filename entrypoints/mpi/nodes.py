"""The launcher's ssh sessions to the nodes: one a node, open from before the start until after the end.

A session that opens proves the node's name, its server and the keys. While it is open the node's watch
(entrypoints.mpi.watch) tells over it what becomes of the ranks; when it breaks, the node is lost. mpirun notices
neither a paused node nor a cut network.
"""

from __future__ import annotations

import json
import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from entrypoints.errors import UsageError
from entrypoints.rank import python

RETRY_SECONDS = 0.5
# ssh says these when trying again cannot help.
_FINAL = ("Host key verification failed", "Permission denied", "Bad owner or permissions", "No user exists")
_END_SECONDS = 10.0
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Event:
    """What a node's watch said (`state`: ready, ended, stopped), or that its session broke (lost)."""

    node_rank: int
    state: str
    details: dict[str, Any]


class Nodes:
    """The sessions to `hosts`. `events` gets every Event; `folder` is where ranks leave word on each node."""

    def __init__(self, hosts: Sequence[str], ssh_config: Path, folder: str) -> None:
        self.hosts = tuple(hosts)
        self.events: queue.Queue[Event] = queue.Queue()
        self._config, self._folder = ssh_config, folder
        self._sessions: list[subprocess.Popen[str] | None] = [None] * len(hosts)
        self._problems = ["no answer yet"] * len(hosts)
        self._lock = threading.Lock()  # for what `close` reads: no session begins after it
        self._closing = False

    def open(self, timeout_seconds: float, interrupted: Callable[[], bool]) -> None:
        """Waits until every node has answered, or until `interrupted`: then no session is left.

        Raises UsageError that names the nodes that have not answered in time, and why.
        """
        deadline = time.monotonic() + timeout_seconds
        threads = [
            threading.Thread(target=self._open, args=(index, deadline), daemon=True)
            for index in range(len(self.hosts))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive() and time.monotonic() < deadline:
                if interrupted():
                    self.close(at_once=True)
                    return
                thread.join(_POLL_SECONDS)
        missing = [f"{host} ({self._problems[i]})" for i, host in enumerate(self.hosts) if self._problems[i]]
        if missing:
            raise UsageError(
                f"{', '.join(missing)}: expected each node to answer over ssh within {timeout_seconds:g} s: "
                "see that its sshd runs, its name, and that its keys are this job's"
            )

    def close(self, at_once: bool = False) -> None:
        """Ends the sessions; the events that nodes still tell come before this returns.

        `at_once`: without them. No rank has been started, and a watch ends by itself when its session breaks.
        """
        with self._lock:
            self._closing = True
            sessions = [
                (session, not self._problems[i]) for i, session in enumerate(self._sessions) if session is not None
            ]
        for session, ready in sessions:
            if at_once or not ready:
                session.kill()
            elif session.stdin is not None:
                session.stdin.close()  # the watch ends by it
        end = time.monotonic() + _END_SECONDS
        for session, _ in sessions:
            try:
                session.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                session.kill()
                session.wait()

    def _open(self, index: int, deadline: float) -> None:
        while True:
            with tempfile.TemporaryFile("w+") as complaints:
                with self._lock:
                    if self._closing:
                        return
                    session = self._sessions[index] = self._start(index, complaints)
                ready = session.stdout.readline() if session.stdout else ""
                if ready:
                    self._problems[index] = ""
                    threading.Thread(target=self._listen, args=(index, session), daemon=True).start()
                    return
                session.wait()
                complaints.seek(0)
                lines = complaints.read().strip().splitlines()
            self._problems[index] = lines[-1] if lines else f"its watch ended with code {session.returncode}"
            # ssh's own code is 255; any other is that of the watch, which should not have ended.
            final = session.returncode != 255 or any(text in line for text in _FINAL for line in lines)
            if final or time.monotonic() + RETRY_SECONDS > deadline:
                return
            time.sleep(RETRY_SECONDS)

    def _start(self, index: int, complaints: Any) -> subprocess.Popen[str]:
        remote = " ".join(python("entrypoints.mpi.watch", [self._folder]))
        return subprocess.Popen(
            ["ssh", "-F", str(self._config), self.hosts[index], remote],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            start_new_session=True,  # ctrl-C at a terminal is the launcher's to handle
        )

    def _listen(self, index: int, session: subprocess.Popen[str]) -> None:
        for line in session.stdout or ():
            details = json.loads(line)
            self.events.put(Event(index, details.pop("state"), details))
        if not self._closing:
            self.events.put(Event(index, "lost", {}))
