"""What the tool does about nodes that are held back, and when it starts a cluster again. The engine's own part is
in tests/cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from entrypoints import contract
from tooling.basis.errors import EngineLostError
from tooling.checks.faults import reliability
from tooling.checks.faults import trial as fault_trial
from tooling.checks.faults.faults import FAULTS
from tooling.checks.faults.reliability import Recovery
from tooling.cluster import nodes, up
from tooling.cluster.compose import ClusterSpec
from tooling.cluster.nodes import Node
from tooling.cluster.run import Outcome
from tooling.cluster.wait import PATIENCE_SECONDS, Watchdog


def node(name: str, **more: bool) -> Node:
    return Node(name, "p", True, 0, False, "", **more)  # type: ignore[arg-type]  # only paused and cut_off


def test_a_paused_node_is_told_at_once_and_given_up_later() -> None:
    said: list[str] = []
    watchdog = Watchdog(said.append)
    seen = [node("node-0"), node("node-1", paused=True)]
    assert not watchdog.stuck(seen, now=100.0)
    assert said == ["node-1 is paused"]
    assert not watchdog.stuck(seen, now=100.0 + PATIENCE_SECONDS)
    assert watchdog.stuck(seen, now=101.0 + PATIENCE_SECONDS)
    assert said[1:] == [f"node-1: not back after {PATIENCE_SECONDS:.0f} s"]


def test_a_node_that_comes_back_has_its_whole_time_again() -> None:
    said: list[str] = []
    watchdog = Watchdog(said.append)
    cut_off = [node("node-1", cut_off=True)]
    assert not watchdog.stuck(cut_off, now=0.0)
    assert not watchdog.stuck([node("node-1")], now=PATIENCE_SECONDS)
    assert not watchdog.stuck(cut_off, now=PATIENCE_SECONDS + 1)
    assert not watchdog.stuck(cut_off, now=2 * PATIENCE_SECONDS)
    told = "node-1 is cut off: its container has left the cluster's network"
    assert said == [told, "node-1 is back", told]


def test_a_node_that_has_ended_is_not_held_back() -> None:
    assert Node("node-1", "p", False, 0, False, "", paused=True, cut_off=True).stall() == ""


def test_an_engine_that_does_not_answer_is_one_line_with_the_cause(tmp_path: Path) -> None:
    endpoint = f"unix://{tmp_path}/docker.sock"
    with pytest.raises(EngineLostError) as caught:
        nodes.read(endpoint)
    assert str(caught.value) == f"the Docker Engine at {endpoint} does not answer: No such file or directory"


def spec() -> ClusterSpec:
    return ClusterSpec("test", "image", nodes=2, ranks_per_node=1, command=("train",))


@pytest.mark.parametrize(
    ("ends", "max_restarts", "runs"),
    [
        ([Outcome(137, 1.0), Outcome(0, 1.0)], 3, 2),
        ([Outcome(1, 1.0)] * 4, 2, 3),
        ([Outcome(1, 1.0)], 0, 1),
        ([Outcome(0, 1.0)], 2, 1),
        ([Outcome(2, 1.0)], 2, 1),
        ([Outcome(143, 1.0, taken_down=True)], 2, 1),
    ],
    ids=["recovers", "gives up", "none wanted", "no failure", "bad usage", "taken down"],
)
def test_a_cluster_is_started_again_after_a_failure_that_another_start_can_mend(
    ends: list[Outcome], max_restarts: int, runs: int
) -> None:
    started: list[ClusterSpec] = []

    def run(cluster: ClusterSpec) -> Outcome:
        started.append(cluster)
        return ends[len(started) - 1]

    assert up.run_again(run, spec(), max_restarts) is ends[runs - 1]
    assert [cluster.restarted for cluster in started] == [False, *[True] * (runs - 1)]
    # The trainer goes on in a folder that bears its own job's name, and in no other.
    names = {cluster.environment[contract.JOB] for cluster in started}
    assert len(names) == 1
    ends += [Outcome(0, 1.0)] * len(started)
    up.run_again(run, spec(), 0)
    assert started[-1].environment[contract.JOB] not in names


def trial(**changes: object) -> fault_trial.Trial:
    values: dict[str, object] = {
        "fault": "rank-killed",
        "launcher": "mpirun",
        "detected_seconds": 1.0,
        "ended_seconds": 2.0,
        "exit_code": 137,
        "left": (),
        "output": "",
    }
    return fault_trial.Trial(**{**values, **changes})  # type: ignore[arg-type]  # one place for the defaults


ON = Recovery(steps_lost=4, loss_apart=0.001)


@pytest.mark.parametrize(
    ("changes", "recovery", "problem"),
    [
        ({}, ON, None),
        ({"exit_code": 0}, ON, "exit code 0"),
        ({"detected_seconds": None}, ON, "its cause was not reported"),
        ({"ended_seconds": reliability.TIMEOUT_SECONDS + 31.0}, ON, "too late"),
        ({"left": ("network x",)}, ON, "left something behind"),
        ({}, None, "no recovery"),
        ({}, Recovery(12, 0.001), "recovery lost 12 steps"),
        ({}, Recovery(4, 0.02), "different losses after the recovery"),
    ],
)
def test_a_fault_that_is_not_survived_as_it_should_be_is_told(
    changes: dict[str, object], recovery: Recovery | None, problem: str | None
) -> None:
    found = reliability.judge(trial(**changes), FAULTS["rank-killed"], recovery)
    assert found == ((problem,) if problem else ())


def test_losses_are_read_step_by_step_and_compared() -> None:
    printed = "node-0-1  | step 1/40  loss 2.0000  lr 4.1e-05\nstep 2/40  loss 1.0000\nstep 2/40  loss 1.1000\n"
    read = reliability.losses(printed)
    assert read == {1: 2.0, 2: 1.1}
    assert reliability.apart({2: 1.1}, read) == 0
    assert reliability.apart({1: 2.5, 2: 1.1}, read) == 0.25
    assert reliability.apart({3: 1.0}, read) == reliability.apart({}, read) == float("inf")
