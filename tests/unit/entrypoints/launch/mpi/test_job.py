"""When mpi-launch ends ranks that save a checkpoint."""

from __future__ import annotations

import queue
import signal
import subprocess
import time
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from cpu_train_stack.launch.mpi.job import MpirunJob, Signals
from cpu_train_stack.launch.mpi.node_watch import CAN_SAVE
from cpu_train_stack.launch.mpi.sessions import SessionEvent

GRACE_SECONDS = 60


@dataclass
class SavingNodes:
    """One node, whose ranks can save. While they save, the signals `later` arrive."""

    signals: Signals
    later: tuple[int, ...]
    hosts: tuple[str, ...] = ("node-0",)
    events: queue.Queue[SessionEvent] = field(default_factory=queue.Queue)

    def ask_to_save(self) -> None:
        for number in self.later:
            self.signals._note(number, None)

    def close(self) -> None:
        return


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("first", "later"),
    [(signal.SIGTERM, (signal.SIGTERM,)), (signal.SIGTERM, (signal.SIGINT,)), (signal.SIGINT, ())],
    ids=["two SIGTERM", "ctrl-C after SIGTERM", "ctrl-C"],
)
def test_a_signal_while_ranks_save_ends_them_at_once(first: int, later: tuple[int, ...]) -> None:
    signals = Signals()
    nodes = SavingNodes(signals, later)
    nodes.events.put(SessionEvent(0, CAN_SAVE, {"now": True}))
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    job = MpirunJob(process, cast(Any, nodes), signals, GRACE_SECONDS)
    job._take(0.0)
    signals._note(first, None)
    began = time.monotonic()
    assert job.until_end() == 128 + first
    assert time.monotonic() - began < GRACE_SECONDS / 3
    assert process.returncode == -signal.SIGTERM


@pytest.mark.timeout(30)
def test_ranks_that_save_have_the_grace_period() -> None:
    signals = Signals()
    nodes = SavingNodes(signals, ())
    nodes.events.put(SessionEvent(0, CAN_SAVE, {"now": True}))
    process = subprocess.Popen(["sleep", "1"], start_new_session=True)
    job = MpirunJob(process, cast(Any, nodes), signals, GRACE_SECONDS)
    job._take(0.0)
    signals._note(signal.SIGTERM, None)
    job.until_end()
    assert process.returncode == 0
