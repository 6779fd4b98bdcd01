"""Follow mpirun to its end: find the first failed rank or node, and leave no process behind."""

from __future__ import annotations

import math
import os
import queue
import signal
import subprocess
import time
from types import FrameType

from cpu_train_stack import contract
from cpu_train_stack.cli.say import say
from cpu_train_stack.launch.failures import Failure, failed_rank, how_it_ended, report, report_signal
from cpu_train_stack.launch.mpi import ssh
from cpu_train_stack.launch.mpi.node_watch import CAN_SAVE, MUST_END
from cpu_train_stack.launch.mpi.sessions import Nodes, SessionEvent
from cpu_train_stack.machine import last_checkpoint, processes

# After the first failure, the other ranks have this long to fail too and to print their errors.
GRACE_SECONDS = 5.0
# Within this time, the reports about a failure and its consequences arrive in any order.
SETTLE_SECONDS = 1.0
# The time for mpirun to exit after SIGTERM.
STOP_SECONDS = 5.0
# A killed rank precedes all ranks that exited: the clocks of nodes differ. A lost node precedes both.
KILLED_HEAD_START = 86400.0
LOST_HEAD_START = math.inf
_POLL_SECONDS = 0.2
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """While entered, `number` is the first signal that stopped this launcher, 0 before; `count`: of all signals.

    An ignored SIGHUP stays ignored: nohup ignores it.
    """

    number = count = 0

    def __enter__(self) -> Signals:
        hangup_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self._handled = [number for number in _SIGNALS if number != signal.SIGHUP or not hangup_ignored]
        for number in self._handled:
            signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._handled:
            signal.signal(number, signal.SIG_DFL)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.number = self.number or number
        self.count += 1


class MpirunJob:
    """mpirun's process, the nodes' reports and this launcher's signals: whichever comes first ends the job."""

    def __init__(
        self, process: subprocess.Popen[bytes], nodes: Nodes, signals: Signals, grace_seconds: int
    ) -> None:
        """`grace_seconds`: of last_checkpoint."""
        self._process, self._nodes, self._signals, self._grace = process, nodes, signals, grace_seconds
        self._can_save = self._is_cut = False
        self._saved_until: float | None = None
        self._failures: list[Failure] = []
        self._ending_nodes: dict[int, Failure] = {}
        self._first: float | None = None
        self._exit_code: int | None = None

    def until_end(self) -> int:
        """The exit code: 128 + N if signal N ended this launcher, the first failure's, or mpirun's."""
        try:
            while self._process.poll() is None and not self._is_stopped():
                self._take(timeout=_POLL_SECONDS)
                waited = 0.0 if self._first is None else time.monotonic() - self._first
                if waited > SETTLE_SECONDS:
                    self._report_once()
                if waited > GRACE_SECONDS:
                    break
        finally:
            self._stop()
        interrupted = self._signals.number
        self._nodes.close()  # the nodes' last reports arrive
        while self._take(timeout=0.0):
            pass
        has_saved = any(failure.exit_code == contract.STOPPED_EXIT_CODE for failure in self._failures)
        has_finished = not self._is_cut and self._process.returncode == 0 and not self._failures
        if not has_saved and not has_finished:
            self._failures += self._ending_nodes.values()
        if interrupted and not has_saved and not has_finished:
            return report_signal(interrupted)
        if not self._failures and self._process.returncode:
            exit_code, how = how_it_ended(self._process.returncode)
            self._failures.append(Failure(f"mpirun {how}", exit_code))
        return self._report_once()

    def _is_stopped(self) -> bool:
        """Whether a signal ends the job now. After the first SIGTERM, here or on a node, ranks that can save
        may take their time.
        """
        node = next((ending.text for ending in self._ending_nodes.values()), "")
        if not (node or self._signals.number):
            return False
        may_save = self._can_save and self._grace and self._signals.number in (0, signal.SIGTERM)
        if self._saved_until is None and may_save:
            self._saved_until = time.monotonic() + self._grace
            self._nodes.ask_to_save()
            say(last_checkpoint.note(self._grace, "" if self._signals.number else node))
        if self._saved_until is None:
            return True
        # A drain may send SIGTERM to a node and to this launcher.
        is_insistent = self._signals.count > 1 or self._signals.number not in (0, signal.SIGTERM)
        return is_insistent or time.monotonic() > self._saved_until

    def _take(self, timeout: float) -> bool:
        """Note the next event. False if there is none within `timeout` seconds."""
        try:
            self._note(self._nodes.events.get(timeout=timeout))
        except queue.Empty:
            return False
        return True

    def _note(self, event: SessionEvent) -> None:
        details = event.details
        node = f"node {event.node_rank} ({self._nodes.hosts[event.node_rank]})"
        if event.state == CAN_SAVE:
            self._can_save = details["now"]
        elif event.state == "stopped":
            say(processes.stopped_line(details["rank"], details["local_rank"], event.node_rank))
        elif event.state == "ended" and details["code"] != 0:
            failure = failed_rank(
                details["rank"],
                details["local_rank"],
                event.node_rank,
                details["code"],
                out_of_memory=details["out_of_memory"],
                at=details["at"],
                head_start=KILLED_HEAD_START if details["code"] < 0 else 0.0,
                printed=details["code"] == contract.USAGE_EXIT_CODE,  # by rank 0, for all ranks
            )
            self._add(failure)
        elif event.state == MUST_END:
            text = f"{node} received SIGTERM"
            self._ending_nodes[event.node_rank] = Failure(text, 128 + signal.SIGTERM, at=time.time())
        elif event.state == "lost" and event.node_rank not in self._ending_nodes:
            silence = ssh.ALIVE_SECONDS * ssh.ALIVE_COUNT
            text = f"{node} is lost: its connection broke, or it did not respond for {silence} s"
            self._add(Failure(text, exit_code=1, head_start=LOST_HEAD_START))

    def _add(self, failure: Failure) -> None:
        self._failures.append(failure)
        self._first = self._first or time.monotonic()

    def _report_once(self) -> int:
        """On the first call after a failure, report the cause. Returns its exit code, 0 without a failure."""
        if self._exit_code is None and self._failures:
            self._exit_code = report(self._failures)
        return self._exit_code or 0

    def _stop(self) -> None:
        """Stop mpirun, which passes SIGTERM to the ranks. If mpirun is killed, its helpers on the nodes do so."""
        try:
            if self._process.poll() is None:
                self._is_cut = True
                self._process.terminate()
                self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
