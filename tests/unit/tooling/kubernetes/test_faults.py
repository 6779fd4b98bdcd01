"""What the operators do when the containers of a manifest's pods end: a model of their rules.

Read from the sources of Kubernetes 1.36 (podFailurePolicy), JobSet 0.12 (failure_policy.go), mpi-operator 0.8 (its
launcher is a Job) and training-operator 1.9 (pkg/core/job.go, pytorchjob_controller.go).
"""

import re
from collections.abc import Sequence

import pytest

from cpu_train_stack import contract
from tests.unit.tooling.kubernetes.jobs import Document, documents, replicas

RESTARTS = 3
# How a pod ends whose machine is drained. Its container's exit code does not matter then.
DISRUPTED = "disrupted"
End = int | str
CRASH, KILLED = 1, 137


def failed_job(spec: Document, container: str, end: End) -> tuple[str, str]:
    """The reason and the message of a failed Job of Kubernetes. `spec`: the Job's."""
    for number, rule in enumerate(spec["podFailurePolicy"]["rules"]):
        wanted = rule.get("onExitCodes", {})
        if end == DISRUPTED and any(one["type"] == "DisruptionTarget" for one in rule.get("onPodConditions", ())):
            return (
                "PodFailurePolicy",
                f"Pod ml/bert has condition DisruptionTarget matching FailJob rule at index {number}",
            )
        if (wanted.get("containerName"), wanted.get("operator")) == (container, "In") and end in wanted["values"]:
            text = f"Container {container} for pod ml/bert failed with exit code {end} matching FailJob rule"
            return "PodFailurePolicy", f"{text} at index {number}"
    return "BackoffLimitExceeded", "Job has reached the specified backoff limit"


def trainjob(ends: Sequence[End]) -> str:
    """A TrainJob after one of its pods has ended with each of `ends`, one after the other."""
    runtime, _ = documents("trainjob", max_restarts=RESTARTS)
    jobs = runtime["spec"]["template"]["spec"]
    (node,) = jobs["replicatedJobs"]
    spec = node["template"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert (spec["backoffLimit"], spec["template"]["spec"]["restartPolicy"]) == (0, "Never")
    counted = 0
    for end in ends:
        reason, message = failed_job(spec, container["name"], end)
        action = "RestartJobSet"
        for rule in jobs["failurePolicy"]["rules"]:
            if reason in rule["onJobFailureReasons"] and any(
                re.search(pattern, message) for pattern in rule["onJobFailureMessagePatterns"]
            ):
                action = rule["action"]
                break
        if action == "FailJobSet" or (
            action == "RestartJobSet" and counted >= jobs["failurePolicy"]["maxRestarts"]
        ):
            return "failed"
        counted += action == "RestartJobSet"
    return f"restarted, {counted} counted"


def mpijob(ends: Sequence[End]) -> str:
    """An MPIJob after its launcher has ended with each of `ends`."""
    (job,) = documents("mpijob", max_restarts=RESTARTS)
    assert replicas(job)["Launcher"]["restartPolicy"] == "Never"
    failed = len(ends) > job["spec"]["runPolicy"]["backoffLimit"]
    return "failed" if failed else f"restarted, {len(ends)} counted"


def pytorchjob(ends: Sequence[End], nodes: int) -> str:
    """A PyTorchJob all of whose pods have ended with each of `ends`. A container restarts in its pod."""
    (job,) = documents("pytorchjob", max_restarts=RESTARTS, nodes=nodes)
    assert replicas(job)["Worker"]["restartPolicy"] == "OnFailure"
    restarts = len(ends) * nodes
    return "failed" if restarts >= job["spec"]["runPolicy"]["backoffLimit"] else f"restarted, {len(ends)} counted"


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([DISRUPTED] * 20, "restarted, 0 counted"),
        ([contract.STOPPED_EXIT_CODE] * 20, "restarted, 0 counted"),
        ([contract.USAGE_EXIT_CODE], "failed"),
        ([CRASH, DISRUPTED, KILLED, contract.STOPPED_EXIT_CODE, CRASH], "restarted, 3 counted"),
        ([CRASH] * (RESTARTS + 1), "failed"),
        ([27, 22, 12], "restarted, 3 counted"),
    ],
    ids=["drains", "stops", "invalid input", "all faults", "too many", "codes that contain 2"],
)
def test_a_trainjob_counts_only_failures_of_its_own(ends: list[End], expected: str) -> None:
    assert trainjob(ends) == expected


COUNTED = pytest.mark.parametrize(
    ("count", "expected"), [(RESTARTS, f"restarted, {RESTARTS} counted"), (RESTARTS + 1, "failed")]
)


@COUNTED
@pytest.mark.parametrize("end", [CRASH, contract.USAGE_EXIT_CODE, contract.STOPPED_EXIT_CODE])
def test_an_mpijob_counts_every_end_of_its_launcher(end: int, count: int, expected: str) -> None:
    assert mpijob([end] * count) == expected


@COUNTED
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_a_pytorchjob_counts_every_restart_of_all_its_pods(nodes: int, count: int, expected: str) -> None:
    assert pytorchjob([CRASH] * count, nodes) == expected
