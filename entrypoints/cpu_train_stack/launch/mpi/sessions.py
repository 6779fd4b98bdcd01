"""The launcher's ssh sessions: one per node, open from before the start until after the end.

An open session proves the node's name, its server and the keys. Over the session, `node_watch` reports the
state of the node's ranks. When a session breaks, the node is lost: mpirun detects neither a paused node nor a
broken network.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpu_train_stack.cli.errors import MeetingError
from cpu_train_stack.cli.interpreter import python_command
from cpu_train_stack.cli.say import say
from cpu_train_stack.launch.mpi.node_watch import BUSY

RETRY_SECONDS = 0.5
# ssh's errors that a retry cannot fix.
_FINAL = ("Host key verification failed", "Permission denied", "Bad owner or permissions", "No user exists")
_SAVING = "ranks of an earlier launcher are still saving a checkpoint"
_END_SECONDS = 10.0
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class SessionEvent:
    """A report of a node's watch (`state`: can_save, must_end, ended, stopped), or its session's loss (lost)."""

    node_rank: int
    state: str
    details: dict[str, Any]


class Nodes:
    """The sessions to `hosts`. `events` receives every Event.

    `folder`: for the ranks' state, on each node. `environ`: the variables of ssh.
    """

    def __init__(self, hosts: Sequence[str], ssh_config: Path, folder: str, environ: Mapping[str, str]) -> None:
        self.hosts = tuple(hosts)
        self.events: queue.Queue[SessionEvent] = queue.Queue()
        self._config, self._folder, self._environ = ssh_config, folder, environ
        self._sessions: list[subprocess.Popen[str] | None] = [None] * len(hosts)
        self._problems = ["no response yet"] * len(hosts)
        self._lock = threading.Lock()  # so that no session starts after `close`
        self._closing = False

    def open(self, timeout_seconds: float, grace_seconds: float, interrupted: Callable[[], bool]) -> None:
        """Wait until every node's watch is ready. If `interrupted` returns True, close all sessions and return.

        `grace_seconds`: more time if ranks of an earlier launcher save a checkpoint on a node.
        Raises MeetingError with the nodes that were not ready in time, and the reasons.
        """
        deadline = time.monotonic() + timeout_seconds
        threads = [
            threading.Thread(target=self._open, args=(index, deadline), daemon=True)
            for index in range(len(self.hosts))
        ]
        for thread in threads:
            thread.start()
        has_waited = False
        for thread in threads:
            while thread.is_alive() and time.monotonic() < deadline:
                if interrupted():
                    self.close(at_once=True)
                    return
                thread.join(_POLL_SECONDS)
                if not has_waited and _SAVING in self._problems:
                    has_waited = True
                    deadline += grace_seconds
                    say(f"note: {self.hosts[self._problems.index(_SAVING)]}: {_SAVING}: waiting for them")
        missing = [f"{host} ({self._problems[i]})" for i, host in enumerate(self.hosts) if self._problems[i]]
        if missing:
            raise MeetingError(
                f"{', '.join(missing)}: expected each node to respond over ssh within {timeout_seconds:g} s: "
                "check each node's name, that its sshd is running, and that it has this job's keys"
            )

    def close(self, at_once: bool = False) -> None:
        """End the sessions. The nodes' last events arrive before this returns.

        `at_once`: no rank has started: do not wait for events. A watch exits when its session breaks.
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
                session.stdin.close()  # the watch exits
        end = time.monotonic() + _END_SECONDS
        for session, _ in sessions:
            try:
                session.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                session.kill()
                session.wait()

    def ask_to_save(self) -> None:
        """Ask the ranks of all nodes to save a checkpoint and end."""
        for session in self._sessions:
            if session is not None and session.stdin is not None:
                with suppress(OSError):  # it is lost, which its event says
                    os.write(session.stdin.fileno(), b"save\n")  # nothing stays in a buffer for `close`

    def _open(self, index: int, deadline: float) -> None:
        while True:
            with tempfile.TemporaryFile("w+") as errors:
                with self._lock:
                    if self._closing:
                        return
                    session = self._sessions[index] = self._start(index, errors)
                ready = self._first_report(index, session)
                if ready:
                    self._problems[index] = ""
                    threading.Thread(target=self._listen, args=(index, session), daemon=True).start()
                    return
                session.wait()
                errors.seek(0)
                lines = errors.read().strip().splitlines()
            self._problems[index] = lines[-1] if lines else f"its watch ended with code {session.returncode}"
            # ssh's own exit code is 255. Any other code is the watch's, and the watch should not have exited.
            final = session.returncode != 255 or any(text in line for text in _FINAL for line in lines)
            if final or time.monotonic() + RETRY_SECONDS > deadline:
                return
            time.sleep(RETRY_SECONDS)

    def _first_report(self, index: int, session: subprocess.Popen[str]) -> str:
        """The line that says that the watch is ready; empty if it ended."""
        for line in session.stdout or ():
            if json.loads(line)["state"] != BUSY:
                return line
            self._problems[index] = _SAVING
        return ""

    def _start(self, index: int, errors: Any) -> subprocess.Popen[str]:
        remote = " ".join(python_command("cpu_train_stack.launch.mpi.node_watch", [self._folder]))
        return subprocess.Popen(
            ["ssh", "-F", str(self._config), self.hosts[index], remote],
            env=self._environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,  # only the launcher receives a terminal's ctrl-C
        )

    def _listen(self, index: int, session: subprocess.Popen[str]) -> None:
        for line in session.stdout or ():
            details = json.loads(line)
            self.events.put(SessionEvent(index, details.pop("state"), details))
        if not self._closing:
            self.events.put(SessionEvent(index, "lost", {}))
