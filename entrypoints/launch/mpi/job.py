"""A job of mpirun's, followed to its end: which rank or node failed first, and that nothing outlives it."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from types import FrameType

from entrypoints import contract
from entrypoints.launch.mpi import ssh
from entrypoints.launch.mpi.sessions import Event, Nodes
from entrypoints.machine import processes
from entrypoints.rank.exit import how_it_ended

# After the first failure the other ranks have this long to notice it by themselves and to end with a message.
GRACE_SECONDS = 5.0
# Within it the nodes' words of one failure and of what it brought about arrive in any order.
SETTLE_SECONDS = 1.0
# After mpirun has handed SIGTERM on.
STOP_SECONDS = 5.0
_POLL_SECONDS = 0.2
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Failure:
    """One end that was not well. `at`: seconds since the epoch on its node, where it is a rank's."""

    text: str
    exit_code: int
    lost_node: bool = False
    code: int = 0
    at: float = 0.0

    @property
    def order(self) -> tuple[bool, bool, bool, float]:
        """The cause before its consequences: a lost node, a rank that a signal killed, then by time. A rank that
        was asked to end comes last."""
        return self.code == -signal.SIGTERM, not self.lost_node, self.code >= 0, self.at


class Signals:
    """The first signal that asked this launcher to end, 0 before."""

    number = 0

    def __enter__(self) -> Signals:
        for number in _SIGNALS:
            signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.number = self.number or number


class Job:
    """mpirun's process, the nodes' words and this launcher's signals, whichever ends the job first."""

    def __init__(self, process: subprocess.Popen[bytes], nodes: Nodes, signals: Signals) -> None:
        self._process, self._nodes, self._signals = process, nodes, signals
        self._failures: list[Failure] = []
        self._first: float | None = None
        self._told: Failure | None = None

    def until_end(self) -> int:
        """The exit code: 128 + N if signal N ended this launcher, the first failure's, or mpirun's."""
        try:
            while self._process.poll() is None and not self._signals.number:
                self._take(timeout=_POLL_SECONDS)
                waited = 0.0 if self._first is None else time.monotonic() - self._first
                if waited > SETTLE_SECONDS:
                    self._tell()
                if waited > GRACE_SECONDS:
                    break
        finally:
            self._stop()
        interrupted = self._signals.number
        self._nodes.close()  # what the nodes have yet to tell
        while self._take(timeout=0.0):
            pass
        if interrupted:
            return 128 + interrupted
        if not self._failures and self._process.returncode:
            exit_code, how = how_it_ended(self._process.returncode)
            self._failures.append(Failure(f"mpirun {how}", exit_code))
        return self._tell()

    def _take(self, timeout: float) -> bool:
        try:
            self._note(self._nodes.events.get(timeout=timeout) if timeout else self._nodes.events.get_nowait())
        except queue.Empty:
            return False
        return True

    def _note(self, event: Event) -> None:
        details = event.details
        rank = f"rank {details.get('rank')} (local {details.get('local_rank')}, node {event.node_rank})"
        if event.state == "stopped":
            _print(processes.stopped_line(details["rank"], details["local_rank"], event.node_rank))
        elif event.state == "ended" and details["code"] != 0:
            exit_code, how = how_it_ended(details["code"], details["out_of_memory"])
            self._add(Failure(f"{rank} {how}", exit_code, code=details["code"], at=details["at"]))
        elif event.state == "lost":
            silence = ssh.ALIVE_SECONDS * ssh.ALIVE_COUNT
            text = f"node {event.node_rank} ({self._nodes.hosts[event.node_rank]}) is lost"
            self._add(
                Failure(f"{text}: its connection broke, or it was silent for {silence} s", 1, lost_node=True)
            )

    def _add(self, failure: Failure) -> None:
        self._failures.append(failure)
        self._first = self._first or time.monotonic()

    def _tell(self) -> int:
        """Says once what the cause was. Returns its exit code, 0 where nothing failed."""
        if self._told is None and self._failures:
            self._told = min(self._failures, key=lambda failure: failure.order)
            if self._told.code != contract.USAGE_EXIT_CODE:  # that has been told, once for all ranks
                _print(self._told.text)
        return self._told.exit_code if self._told else 0

    def _stop(self) -> None:
        """mpirun hands SIGTERM on to the ranks; without mpirun its helpers on the nodes end them."""
        try:
            if self._process.poll() is None:
                self._process.terminate()
                self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
