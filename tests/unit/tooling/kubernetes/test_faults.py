"""What the operators do when the containers of a manifest's pods end: a model of their rules.

Read from the sources of Kubernetes 1.36 (podFailurePolicy), JobSet 0.12 (failure_policy.go), mpi-operator 0.8 (its
launcher is a Job) and training-operator 1.9 (ReconcileJobs, DeletePodsAndServices, PastBackoffLimit, and
UpdateJobStatus of pytorchjob_controller.go).
"""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from cpu_train_stack import contract
from tests.unit.tooling.kubernetes.jobs import Document, documents, replicas

RESTARTS = 3
# How a pod ends whose machine is drained. Its container's exit code does not matter then.
DISRUPTED = "disrupted"
# A pod whose machine is lost. It stays "Terminating", because no kubelet says that its containers have ended.
LOST = "lost"
End = int | str
CRASH, KILLED = 1, 137


def failed_job(spec: Document, container: str, ends: Sequence[End]) -> tuple[str, str]:
    """The reason and the message of a failed Job of Kubernetes. `spec`: the Job's.

    `ends`: of the pods that had failed when the Job's controller looked. It looks once.
    """
    for end, (number, rule) in itertools.product(ends, enumerate(spec["podFailurePolicy"]["rules"])):
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


def trainjob(faults: Sequence[Sequence[End]]) -> str:
    """A TrainJob after these faults, one after the other. Each: the ends of the pods that failed at one time."""
    runtime, _ = documents("trainjob", max_restarts=RESTARTS)
    jobs = runtime["spec"]["template"]["spec"]
    (node,) = jobs["replicatedJobs"]
    spec = node["template"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert (spec["backoffLimit"], spec["template"]["spec"]["restartPolicy"]) == (0, "Never")
    counted = 0
    for ends in faults:
        if LOST in ends:  # a Job has failed only when all of its pods have ended
            return "waits"
        reason, message = failed_job(spec, container["name"], ends)
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


@dataclass
class Worker:
    """A pod of a PyTorchJob."""

    phase: str = "Running"
    restarts: int = 0
    is_terminating: bool = False


@dataclass
class PyTorchJob:
    """training-operator's view of a PyTorchJob. `pods`: those that exist, whose logs can be read."""

    document: Document
    status: str = "Running"
    pods: dict[int, Worker] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._spec = replicas(self.document)["Worker"]
        self._known_failures = 0
        self._create()

    def end(self, ends: Sequence[End | None]) -> str:
        """The containers of the pods end at the same time. None: this one runs on. Returns the status."""
        for pod, end in zip(self.pods.copy().values(), ends, strict=True):
            if end in (DISRUPTED, LOST):
                pod.is_terminating = True
            elif end == 0:
                pod.phase = "Succeeded"
            elif end is not None and self._spec["restartPolicy"] == "OnFailure":
                pod.restarts += 1
            elif end is not None:
                pod.phase = "Failed"
        self._reconcile()
        if self.status == "Running":
            gone = {number for number, end in enumerate(ends) if end == DISRUPTED}
            self.pods = {number: pod for number, pod in self.pods.items() if number not in gone}
            self._create()
        return self.status

    def _create(self) -> None:
        self.pods = {number: self.pods.get(number, Worker()) for number in range(self._spec["replicas"])}

    def _reconcile(self) -> None:
        policy, pods = self.document["spec"]["runPolicy"], self.pods.values()
        if "backoffLimit" in policy and self._is_past(policy["backoffLimit"]):
            self.status = "Failed"
            self.pods = {}  # whatever cleanPodPolicy is, because the job had not failed before
            return
        succeeded = sum(pod.phase == "Succeeded" for pod in pods)
        if succeeded == self._spec["replicas"] or ("elasticPolicy" in self.document["spec"] and succeeded):
            self.status = "Succeeded"
        has_failed = any(pod.phase == "Failed" or pod.is_terminating for pod in pods)
        if has_failed and self._spec["restartPolicy"] == "Never":
            self.status = "Failed"
        if self.status != "Running" and policy["cleanPodPolicy"] == "Running":
            self.pods = {number: pod for number, pod in self.pods.items() if pod.phase != "Running"}

    def _is_past(self, limit: int) -> bool:
        failed = sum(pod.phase == "Failed" for pod in self.pods.values())
        has_new, self._known_failures = failed > self._known_failures, failed
        restarts = sum(pod.restarts for pod in self.pods.values())
        counts = self._spec["restartPolicy"] != "Never"
        return (has_new and limit < 1) or (counts and restarts >= max(limit, 1))


def pytorchjob(nodes: int, max_restarts: int = RESTARTS) -> PyTorchJob:
    (document,) = documents("pytorchjob", max_restarts=max_restarts, nodes=nodes)
    return PyTorchJob(document)


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        ([[DISRUPTED]] * 20, "restarted, 0 counted"),
        ([[contract.STOPPED_EXIT_CODE]] * 20, "restarted, 0 counted"),
        ([[contract.USAGE_EXIT_CODE]], "failed"),
        ([[CRASH], [DISRUPTED], [KILLED], [contract.STOPPED_EXIT_CODE], [CRASH]], "restarted, 3 counted"),
        ([[CRASH]] * (RESTARTS + 1), "failed"),
        ([[27], [22], [12]], "restarted, 3 counted"),
        ([[contract.STOPPED_EXIT_CODE, DISRUPTED]] * 20, "restarted, 0 counted"),
        ([[CRASH, DISRUPTED]] * 20, "restarted, 0 counted"),
        # The other ranks of a script lose the connection, and fail as in a crash.
        ([[CRASH]], "restarted, 1 counted"),
        ([[CRASH, contract.USAGE_EXIT_CODE]], "failed"),
        ([[CRASH, LOST]], "waits"),
    ],
    ids=[
        *("drains", "stops", "invalid input", "all faults", "too many", "codes that contain 2"),
        *("a drained pod of train", "a drained pod of a script", "the same, with the other pod seen first"),
        *("invalid input of one pod", "a lost node"),
    ],
)
def test_a_trainjob_counts_failures_that_it_sees_before_a_drain(faults: list[list[End]], expected: str) -> None:
    assert trainjob(faults) == expected


@pytest.mark.parametrize(
    ("count", "expected"), [(RESTARTS, f"restarted, {RESTARTS} counted"), (RESTARTS + 1, "failed")]
)
@pytest.mark.parametrize("end", [CRASH, contract.USAGE_EXIT_CODE, contract.STOPPED_EXIT_CODE])
def test_an_mpijob_counts_every_end_of_its_launcher(end: int, count: int, expected: str) -> None:
    assert mpijob([end] * count) == expected


@pytest.mark.parametrize("nodes", [1, 2, 4])
@pytest.mark.parametrize("end", [CRASH, contract.USAGE_EXIT_CODE])
def test_a_pytorchjob_fails_after_its_restarts_and_deletes_its_pods(nodes: int, end: int) -> None:
    job = pytorchjob(nodes)
    assert [job.end([end] * nodes) for _ in range(RESTARTS)] == ["Running"] * RESTARTS
    assert (job.end([end] * nodes), job.pods) == ("Failed", {})


def test_a_pytorchjob_waits_for_the_pod_of_a_lost_node() -> None:
    job = pytorchjob(2)
    assert job.end([None, LOST]) == "Running"
    assert [pod.is_terminating for pod in job.pods.values()] == [False, True]


@pytest.mark.parametrize("ends", [(CRASH, None), (None, CRASH), (CRASH, CRASH)])
def test_without_restarts_the_pods_of_a_pytorchjob_that_have_failed_stay(ends: tuple[End | None, ...]) -> None:
    job = pytorchjob(2, max_restarts=0)
    assert job.end(ends) == "Failed"
    assert [*job.pods] == [number for number, end in enumerate(ends) if end]


def test_a_pytorchjob_succeeds_with_its_first_pod_and_deletes_the_pods_that_run() -> None:
    """Therefore an agent ends with 0 only after all ranks have succeeded, first that of the first node."""
    job = pytorchjob(3)
    assert (job.end([0, None, None]), [*job.pods]) == ("Succeeded", [0])


def test_a_pytorchjob_succeeds_although_another_pod_has_failed() -> None:
    job = pytorchjob(2)
    assert job.end([CRASH, 0]) == "Succeeded"


DRAIN: tuple[End, End] = (DISRUPTED, contract.STOPPED_EXIT_CODE)


def test_a_drain_of_a_pytorchjob_counts_for_each_other_pod() -> None:
    job = pytorchjob(2)
    most = 2 * RESTARTS
    assert [job.end(DRAIN) for _ in range(most)] == ["Running"] * most
    assert job.end(DRAIN) == "Failed"


def test_a_drained_pod_of_a_pytorchjob_begins_to_count_again() -> None:
    job = pytorchjob(2)
    assert {job.end(DRAIN[::direction]) for _ in range(20) for direction in (1, -1)} == {"Running"}


def test_without_restarts_a_drain_ends_a_pytorchjob() -> None:
    assert pytorchjob(2, max_restarts=0).end(DRAIN) == "Failed"
