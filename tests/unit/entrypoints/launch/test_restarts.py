"""Which failures `launch --max-restarts` restarts and reports, with a fake of torchrun's agent."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cpu_train_stack.cli.errors import MeetingError, UsageError
from cpu_train_stack.launch.elastic_agent import FailedElsewhereError, PeerNodes, agent_class
from cpu_train_stack.machine.cgroups import OutOfMemoryKills
from cpu_train_stack.machine.last_checkpoint import LastCheckpoint
from cpu_train_stack.rank.exit import record
from tests.unit.entrypoints.machines.layout import Machine, lay_out


@dataclass
class Failure:
    """As torch.distributed.elastic's ProcessFailure."""

    exitcode: int
    error_file_data: dict[str, Any] = field(default_factory=dict)


class State(enum.Enum):
    """As torchrun's WorkerState."""

    HEALTHY, SUCCEEDED, FAILED = range(3)


@dataclass
class Result:
    """As torchrun's RunResult."""

    state: State
    failures: dict[int, Failure] = field(default_factory=dict)

    def is_failed(self) -> bool:
        return self.state is State.FAILED


class Store:
    """As the rendezvous's TCPStore. `is_lost`: its node has ended."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.is_lost = False

    def set(self, key: str, value: str) -> None:
        self._require()
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        self._require()
        return self.values[key]

    def add(self, key: str, amount: int) -> int:
        total = amount + (int(self.values.get(key, b"0")))
        self.set(key, str(total))
        return total

    def _require(self) -> None:
        if self.is_lost:
            raise RuntimeError("Connection reset by peer")


class Agent:
    """The used part of LocalElasticAgent. `ends`: the failures of each attempt."""

    def __init__(self, max_restarts: int, ends: list[dict[int, Failure]]) -> None:
        self._remaining_restarts = max_restarts
        spec = SimpleNamespace(max_restarts=max_restarts)
        self._group = SimpleNamespace(spec=spec, store=Store(), group_rank=0, group_world_size=1)
        self._ends = iter(ends)
        self.starts = 0

    def _start_workers(self, _group: object) -> None:
        self.starts += 1

    def _monitor_workers(self, _group: object) -> Any:
        failures = next(self._ends)
        return Result(State.FAILED if failures else State.SUCCEEDED, failures)

    def run(self) -> None:
        self._start_workers(self._group)
        while self._monitor_workers(self._group).is_failed() and self._remaining_restarts > 0:
            self._remaining_restarts -= 1
            self._start_workers(self._group)


def run(max_restarts: int, *ends: dict[int, Failure]) -> int:
    """How often the ranks were started."""
    described = agent_class(
        Agent,
        lambda found: f"rank {min(found)} exited with code {found[0].exitcode}",
        lambda found: found[0].exitcode,
        LastCheckpoint(Path("unused"), {}),
        300.0,
        can_join_again=True,
    )
    agent = described(max_restarts, list(ends))
    agent.run()
    return int(agent.starts)


def test_a_node_ends_once_the_ranks_of_all_nodes_have_succeeded() -> None:
    store = Store()
    first, second = (PeerNodes(store, rank, 2, silent_seconds=300) for rank in (0, 1))
    assert [first.all_succeeded(), first.all_succeeded(), second.all_succeeded(), first.all_succeeded()] == [
        *(False, False),
        *(True, True),
    ]


@pytest.mark.parametrize(("fault", "code"), [("failed", 7), ("silent", 1), ("store lost", 1)])
def test_a_node_whose_ranks_succeeded_fails_with_the_others(fault: str, code: int) -> None:
    store = Store()
    first, second = (PeerNodes(store, rank, 2, silent_seconds=0 if fault == "silent" else 300) for rank in (0, 1))
    assert not first.all_succeeded()
    if fault == "failed":
        second.fail(7)
    store.is_lost = fault == "store lost"
    with pytest.raises(FailedElsewhereError) as raised:
        first.all_succeeded()
    assert raised.value.exit_code == code


def test_a_node_without_a_store_goes_on_while_its_ranks_run() -> None:
    store = Store()
    store.is_lost = True
    PeerNodes(store, 1, 2, silent_seconds=300).report_alive()


def test_each_restart_is_reported_with_its_rank_and_cause(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(2, *({0: Failure(code)} for code in (-9, 7, -9))) == 3
    assert capsys.readouterr().err.splitlines() == [
        "rank 0 exited with code -9: restart 1 of 2",
        "rank 0 exited with code 7: restart 2 of 2",
    ]


def recorded(error: BaseException, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The error file that a rank writes, as its agent reads it."""
    file = folder / f"{type(error).__name__}.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    record(error)
    document: dict[str, Any] = json.loads(file.read_text())
    return document


def test_bad_usage_is_not_restarted_but_a_failed_rendezvous_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usage, exited, unmet = (
        Failure(2, recorded(error, tmp_path, monkeypatch))
        for error in (UsageError("no such file"), SystemExit(2), MeetingError("rank 1 did not join"))
    )
    for final in ({0: usage}, {0: exited, 1: exited}, {0: Failure(1), 1: usage}, {0: Failure(2)}):
        assert run(3, final) == 1
    assert run(3, {0: Failure(-9)}, {0: usage}) == 2
    assert capsys.readouterr().err == "rank 0 exited with code -9: restart 1 of 3\n"
    assert run(3, {0: unmet}, {}) == 2


def test_an_out_of_memory_kill_counts_for_its_own_attempt(tmp_path: Path) -> None:
    lay_out(Machine(((1,),), groups={"memory.events": "oom_kill 1\n"}), tmp_path)
    events = tmp_path / "sys/fs/cgroup/memory.events"
    kills = OutOfMemoryKills(tmp_path)
    found = [kills.any_new()]
    events.write_text("oom_kill 2\n")
    found.append(kills.any_new())
    kills.forget()
    found.append(kills.any_new())
    assert found == [False, True, False]
