"""Kubeflow Trainer 2.3: a runtime describes pods that train, and a TrainJob sets their number and command."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar

from cpu_train_stack import contract
from cpu_train_stack.cli.account import TMP
from cpu_train_stack.cli.errors import UsageError
from tooling.image import lock
from tooling.kubernetes import pods, syntax
from tooling.kubernetes.pods import Document
from tooling.kubernetes.request import ManifestRequest, PodRequest

API = "trainer.kubeflow.org/v1alpha1"
# Not a ClusterTrainingRuntime, which jobs of the same name in different namespaces would share.
RUNTIME, CLUSTER_RUNTIME = "TrainingRuntime", "ClusterTrainingRuntime"
# Trainer requires this container name, and this label on its replicated job.
CONTAINER = "node"
ANCESTOR = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
# Kubeflow's SDK lists only runtimes with this label, and starts their jobs with its own torchrun.
FRAMEWORK = {"trainer.kubeflow.org/framework": "torch"}
# The label with the name of the TrainJob on each of its pods.
_JOB_LABEL = "jobset.sigs.k8s.io/jobset-name"
# Our label with the name of the runtime on each pod of its jobs.
_RUNTIME_LABEL = "cpu-train-stack/runtime"
# The definition of a TrainJob allows no more arguments.
MOST_ARGUMENTS = 128


# The Job fails with the reason PodFailurePolicy if the cluster ends a pod, and with some exit codes (_exit_codes).
_DISRUPTED: Document = {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
# The JobSet distinguishes these failures by the Job's message ("... failed with exit code 2 matching FailJob rule
# ..."). Its webhook allows no "-" in the names of rules.
_RULES: tuple[Document, ...] = tuple(
    {
        "name": name,
        "action": action,
        "onJobFailureReasons": ["PodFailurePolicy"],
        "onJobFailureMessagePatterns": patterns,
    }
    for name, action, patterns in (
        ("InvalidInput", "FailJobSet", [f"exit code {contract.USAGE_EXIT_CODE} "]),
        (
            "EndedByTheCluster",
            "RestartJobSetAndIgnoreMaxRestarts",
            ["DisruptionTarget", f"exit code {contract.STOPPED_EXIT_CODE} "],
        ),
    )
)


def _exit_codes(*codes: int) -> Document:
    values = {"containerName": CONTAINER, "operator": "In", "values": list(codes)}
    return {"action": "FailJob", "onExitCodes": values}


def _runtime(request: PodRequest, container: Document, **labels: str) -> Document:
    """The spec of a runtime. If a pod fails, all pods restart together, at most `max_restarts` times.

    Without an elastic rendezvous, the remaining pods could not continue. A restart does not count if the cluster
    has ended a pod, for example on a drained node. After invalid input, nothing restarts. `labels`: of the pods.
    """
    pod = pods.training_pod(request, container)
    replicated_job = {
        "name": CONTAINER,
        "template": {
            "metadata": {"labels": {**ANCESTOR, **pods.LABELS}},
            "spec": {
                "backoffLimit": 0,
                "podFailurePolicy": {"rules": [_DISRUPTED, _exit_codes(*contract.FINAL_EXIT_CODES)]},
                "template": pods.template({"restartPolicy": "Never", **pod}, **labels),
            },
        },
    }
    return {
        "mlPolicy": {"numNodes": request.nodes, "torch": {}},
        "template": {
            "spec": {
                "failurePolicy": {"maxRestarts": request.max_restarts, "rules": list(_RULES)},
                "replicatedJobs": [replicated_job],
            },
        },
    }


@dataclass(frozen=True)
class TrainJob(ManifestRequest):
    """A TrainJob, and the runtime of this job only."""

    POD_SUFFIX: ClassVar[str] = "-node-0-{last}-abcde"  # JobSet checks the name with a random end

    @property
    def pod_labels(self) -> Mapping[str, str]:
        return {_JOB_LABEL: self.name}

    def _checks(self) -> list[Callable[[], object]]:
        return [*super()._checks(), self._check_length]

    def _check_length(self) -> None:
        most = MOST_ARGUMENTS - len(pods.launch(self)) + len(self.command)
        if len(self.command) > most:
            raise UsageError(
                f"the command has {len(self.command)} words, expected at most {most} in a TrainJob: "
                "move options to a file (train CONFIG.yaml)"
            )

    def documents(self) -> list[Document]:
        job = {
            "runtimeRef": {"apiGroup": API.partition("/")[0], "kind": RUNTIME, "name": self.name},
            "trainer": {
                "numNodes": self.nodes,
                "numProcPerNode": pods.operator_ranks(self),
                "args": [pods.escape(argument) for argument in pods.launch(self)],
                "resourcesPerNode": pods.resources(self),
            },
        }
        runtime = _runtime(self, pods.training_container(self, CONTAINER, []))
        return [pods.manifest(self, API, RUNTIME, runtime), pods.job(self, API, "TrainJob", job)]


@dataclass(frozen=True)
class Runtime(PodRequest):
    """A runtime without a job, for Kubeflow's SDK: TrainerClient().train(runtime=NAME, ...).

    The SDK replaces the image's entrypoint by `torchrun FILE`, and writes the file to the working folder. The
    image turns the ranks into its own (cpu_train_stack/rank/torchrun.py). Trainer sets PET_NPROC_PER_NODE to the
    number of CPUs, and a runtime has no field for another number: hence RANKS_PER_NODE.
    """

    name: Annotated[str, "the runtime's name; default: cpu-train-stack and the pin of --image-lock"] = ""
    nodes: Annotated[int, "pods of a job that does not set num_nodes"] = 1
    cluster_scope: Annotated[bool, "write a ClusterTrainingRuntime, for all namespaces"] = False

    def __post_init__(self) -> None:
        if not self.name:
            pin = ""
            if self.image_lock and not self.image:
                with suppress(UsageError):  # `reference` reports it with the other mistakes
                    pin = lock.read(Path(self.image_lock)).pin
            object.__setattr__(self, "name", "-".join(("cpu-train-stack", *filter(None, pin.split(".")))))
        super().__post_init__()

    def _checks(self) -> list[Callable[[], object]]:
        # The name is the value of a label of the pods.
        name = partial(syntax.resource_name, "--name", self.name, syntax.LABEL_LENGTH)
        return [name, *super()._checks(), self._check_scope]

    def _check_scope(self) -> None:
        if self.cluster_scope and self.namespace:
            raise UsageError(
                f"found --cluster-scope and --namespace {self.namespace}, expected one of them: "
                "a ClusterTrainingRuntime is in no namespace"
            )

    @property
    def job_source(self) -> Mapping[str, object]:
        """The name of the TrainJob, which the runtime does not know."""
        return {"valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{_JOB_LABEL}']"}}}

    @property
    def pod_labels(self) -> Mapping[str, str]:
        """A runtime does not know its jobs: pods of all its jobs in the namespace reach each other."""
        return {} if self.cluster_scope else {_RUNTIME_LABEL: self.name}

    def documents(self) -> list[Document]:
        container = pods.training_container(self, CONTAINER, [], workingDir=TMP, resources=pods.resources(self))
        container["env"].append({"name": contract.RANKS_PER_NODE, "value": self.ranks_per_node or "auto"})
        kind = CLUSTER_RUNTIME if self.cluster_scope else RUNTIME
        return [
            pods.manifest(self, API, kind, _runtime(self, container, **{_RUNTIME_LABEL: self.name}), **FRAMEWORK)
        ]
