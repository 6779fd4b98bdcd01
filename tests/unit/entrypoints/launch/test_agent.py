"""`launch`: its options, and which of several failures is the cause."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.launch import agent, options
from cpu_train_stack.launch.failures import Failure, first_failure, report
from cpu_train_stack.machine.cgroups import OutOfMemoryKills
from cpu_train_stack.placement.detect import DistributedEnvironment
from tests.unit.entrypoints.machines.layout import Machine, lay_out


def test_one_node_needs_only_a_command() -> None:
    launch = options.parse(["--", "train", "--bf16"], {})
    assert launch == options.Launch(
        nnodes=1, node_rank=0, master_addr="127.0.0.1", master_port=0, command=("train", "--bf16")
    )
    assert (launch.nproc_per_node, launch.max_restarts, launch.timeout_seconds) == (None, 0, 300.0)


def test_options_behind_the_command_belong_to_it() -> None:
    launch = options.parse(["--nproc-per-node", "2", "run", "--timeout", "5", "x.py", "--", "--nnodes", "9"], {})
    assert launch.command == ("run", "--timeout", "5", "x.py", "--", "--nnodes", "9")
    assert (launch.nnodes, launch.timeout_seconds) == (1, 300.0)


def test_several_nodes_meet_at_torchruns_port() -> None:
    argv = ["--nnodes", "2", "--node-rank", "1", "--master-addr", "node-0", "--nproc-per-node", "3", "--", "train"]
    launch = options.parse(argv, {})
    assert (launch.node_rank, launch.nproc_per_node, launch.master_port) == (1, 3, 29500)


def test_kubeflows_variables_are_the_defaults() -> None:
    pod = {
        "PET_NNODES": "2:2",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "job-node-0-0.job",
        "PET_MASTER_PORT": "29400",
        "PET_NPROC_PER_NODE": "auto",
    }
    launch = options.parse(["--nproc-per-node", "2", "--", "train"], pod)
    assert launch == options.Launch(2, 1, 2, "job-node-0-0.job", 29400, command=("train",))


ELASTIC = {
    "PET_NNODES": "2:2",
    "PET_NPROC_PER_NODE": "1",
    "PET_RDZV_BACKEND": "c10d",
    "PET_RDZV_ENDPOINT": "job-worker-0:23456",
    "PET_MAX_RESTARTS": "3",
}


def test_an_elastic_pytorchjobs_nodes_meet_without_node_ranks() -> None:
    launch = options.parse(["--", "train"], ELASTIC)
    assert (launch.nnodes, launch.node_rank, launch.nproc_per_node, launch.max_restarts) == (2, None, 1, 3)
    assert (launch.master_addr, launch.master_port, launch.command) == ("job-worker-0", 23456, ("train",))
    assert launch.backend == "c10d"
    alone = options.parse(["--", "train"], {**ELASTIC, "PET_NNODES": "1:1"})
    assert (alone.backend, alone.node_rank, alone.master_addr) == ("static", 0, "127.0.0.1")


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [("node-0", ("node-0", 29500)), ("[fd00::1]:99", ("fd00::1", 99)), ("[fd00::1]", ("fd00::1", 29500))],
)
def test_an_endpoint_is_a_host_with_an_optional_port(endpoint: str, expected: tuple[str, int]) -> None:
    launch = options.parse(["--", "train"], {**ELASTIC, "PET_RDZV_ENDPOINT": endpoint})
    assert (launch.master_addr, launch.master_port) == expected


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"PET_RDZV_ENDPOINT": ""}, "--rdzv-endpoint is missing"),
        ({"PET_RDZV_ENDPOINT": "a:b"}, "--rdzv-endpoint: found 'b', expected a port from 1 to 65535"),
        (
            {"PET_RDZV_ENDPOINT": "fe80::1"},
            "'fe80::1', expected HOST or HOST:PORT, with an IPv6 address in brackets",
        ),
        ({"PET_RDZV_BACKEND": "etcd"}, "'etcd', expected static or c10d"),
        ({"PET_NNODES": "1:2"}, "is a range, expected one number"),
        ({"PET_MAX_RESTARTS": "-1"}, "--max-restarts: found '-1', expected an integer of 0 or more"),
        ({"PET_MAX_RESTARTS": "²"}, "--max-restarts: found '²'"),
    ],
    ids=["no endpoint", "port", "bare IPv6", "backend", "range", "restarts", "other digits"],
)
def test_an_invalid_elastic_policy_is_one_line(changed: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        options.parse(["--", "train"], {**ELASTIC, **changed})


@pytest.mark.parametrize("environ", [{}, {"PET_NPROC_PER_NODE": "auto"}], ids=["left out", "Kubeflow's auto"])
def test_auto_is_decided_on_the_node(environ: dict[str, str]) -> None:
    assert options.parse(["--", "train"], environ).nproc_per_node is None
    assert options.parse(["--nproc-per-node", "auto", "--", "train"], environ).nproc_per_node is None
    assert options.parse(["--nproc-per-node", "3", "--", "train"], environ).nproc_per_node == 3


@dataclass
class Ended:
    """The used fields of torchrun's ProcessFailure."""

    local_rank: int
    exitcode: int
    timestamp: int
    error_file: str = "<N/A>"
    error_file_data: dict[str, Any] = field(default_factory=dict)


def left(folder: Path, rank: int, when: float) -> str:
    file = folder / f"{rank}.json"
    file.touch()
    os.utime(file, (when, when))
    return str(file)


def found(failures: dict[int, Ended], node: object = 0, kills: OutOfMemoryKills | None = None) -> list[Failure]:
    return agent.rank_failures(failures, node, kills or OutOfMemoryKills())


def cause(failures: dict[int, Ended]) -> int:
    """The rank of the first failure."""
    return int(first_failure(found(failures)).text.split()[1])


def test_a_killed_rank_is_the_cause_of_its_peers_lost_connections(tmp_path: Path) -> None:
    survivor = Ended(0, 1, 1000, left(tmp_path, 0, 1000.3))
    assert cause({0: survivor, 1: Ended(1, -signal.SIGKILL, 1000)}) == 1


def test_the_rank_with_the_earliest_error_file_is_the_cause(tmp_path: Path) -> None:
    failures = {
        rank: Ended(rank, 1, 1000, left(tmp_path, rank, when)) for rank, when in [(0, 1000.2), (1, 1000.1)]
    }
    assert cause(failures) == 1


def test_a_rank_that_the_agent_terminated_is_never_the_cause(tmp_path: Path) -> None:
    failures = {
        0: Ended(0, -signal.SIGTERM, 990),
        1: Ended(1, 3, 1000, left(tmp_path, 1, 1000.0)),
    }
    assert cause(failures) == 1


def test_a_rank_that_the_agent_killed_later_is_not_the_cause(tmp_path: Path) -> None:
    failures = {
        0: Ended(0, -signal.SIGKILL, 1030),
        1: Ended(1, 1, 1000, left(tmp_path, 1, 1000.0)),
    }
    assert cause(failures) == 1


@pytest.mark.parametrize(
    ("exitcode", "code", "line"),
    [
        (3, 3, "rank 5 (local 1, node 2) exited with code 3\n"),
        (-signal.SIGKILL, 137, "rank 5 (local 1, node 2) was killed by SIGKILL\n"),
        (-signal.SIGSEGV, 139, "rank 5 (local 1, node 2) was killed by SIGSEGV\n"),
        (-40, 168, "rank 5 (local 1, node 2) was killed by signal 40\n"),
    ],
)
def test_the_report_is_one_line_and_the_ranks_own_code(
    capsys: pytest.CaptureFixture[str], exitcode: int, code: int, line: str
) -> None:
    assert report(found({5: Ended(1, exitcode, 1000)}, node=2)) == code
    assert capsys.readouterr().err == line


def test_an_out_of_memory_kill_before_this_launch_is_not_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kernel's counter is never reset: it includes earlier processes of the same container."""
    lay_out(Machine(((1,),), groups={"memory.events": "oom 3\noom_kill 3\n"}), tmp_path)
    events = tmp_path / "sys/fs/cgroup/memory.events"
    kills = OutOfMemoryKills(tmp_path)
    failures = {0: Ended(0, -signal.SIGKILL, 1000)}
    assert report(found(failures, kills=kills)) == 137
    assert "out of memory" not in capsys.readouterr().err
    events.write_text("oom 4\noom_kill 4\n")
    assert report(found(failures, kills=kills)) == 137
    assert "was killed by SIGKILL: out of memory" in capsys.readouterr().err


def test_an_error_that_its_rank_has_printed_is_not_printed_again(capsys: pytest.CaptureFixture[str]) -> None:
    failures = {0: Ended(0, 2, 1000, error_file_data={"printed": True})}
    assert report(found(failures)) == 2
    assert capsys.readouterr().err == ""


class _SignalError(Exception):
    """Stands for an exception of torch that is not raised here."""


def synchronize(barrier_timeout: float = 300) -> float:
    """Stands for torch's function."""
    return barrier_timeout


def run_agent(
    monkeypatch: pytest.MonkeyPatch, elastic_launch: Callable[..., Any], masks: Sequence[set[int]] = ()
) -> list[set[int]]:
    """Run the agent with stand-ins for torch. `masks`: the CPUs of its thread before and after torch's import.

    Returns the CPUs to which it binds its thread.
    """
    api = SimpleNamespace(LocalElasticAgent=object, elastic_launch=elastic_launch)
    modules = {
        "torch.distributed.elastic.multiprocessing": SimpleNamespace(SignalException=_SignalError),
        "torch.distributed.elastic.multiprocessing.errors": SimpleNamespace(ChildFailedError=_SignalError),
        "torch.distributed.elastic.rendezvous": SimpleNamespace(RendezvousError=_SignalError),
        "torch.distributed.elastic.utils": SimpleNamespace(store=SimpleNamespace(synchronize=synchronize)),
        "torch.distributed.launcher": SimpleNamespace(api=api),
        "cpu_train_stack.group.create": SimpleNamespace(explain=lambda error, *_: f"node 0: {error}"),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    left, bound = iter(masks or [{0}, {0}]), list[set[int]]()
    fake_os = SimpleNamespace(
        environ={}, sched_getaffinity=lambda _: next(left), sched_setaffinity=lambda _, cpus: bound.append(cpus)
    )
    monkeypatch.setattr(agent, "os", fake_os)
    monkeypatch.setattr(agent, "_config", lambda *_, **__: None)
    monkeypatch.setattr("cpu_train_stack.machine.processes.report_stopped_ranks", lambda _: None)
    launch = options.parse(["--nproc-per-node", "1", "--timeout", "5", "--", "train"], {})
    agent._run_agent(launch, DistributedEnvironment())
    return bound


@pytest.mark.parametrize(
    "error", [RuntimeError("no route"), TimeoutError("timed out")], ids=["RuntimeError", "2.0"]
)
def test_a_node_that_does_not_reach_node_0_is_one_line(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def elastic_launch(*_: object) -> Any:
        raise error

    with pytest.raises(UsageError, match=f"node 0: {error}"):
        run_agent(monkeypatch, elastic_launch)


def test_the_agents_of_old_torch_wait_for_each_other_as_long_as_the_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []
    run_agent(monkeypatch, lambda *_: lambda *_: waits.append(synchronize()))
    assert waits == [5.0]


def test_ranks_get_the_cpus_that_the_launcher_had_before_it_imported_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch's libgomp binds the thread that imports it, for example with OMP_PLACES=cores."""
    assert run_agent(monkeypatch, lambda *_: lambda *_: None, masks=[{0, 1}, {0}]) == [{0, 1}]
    assert run_agent(monkeypatch, lambda *_: lambda *_: None, masks=[{0, 1}, {0, 1}]) == []
