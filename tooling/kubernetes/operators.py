"""Jobs of the three operators. Each class is a request that renders the documents for its operator."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cpu_train_stack import contract
from cpu_train_stack.cli.account import TMP
from cpu_train_stack.cli.errors import UsageError
from tooling.cluster import launchers
from tooling.kubernetes import pods
from tooling.kubernetes.pods import Document
from tooling.kubernetes.request import ManifestRequest
from tooling.kubernetes.trainer import Runtime, TrainJob

# The webhook of training-operator requires this container name. The operator reads the port for PET_RDZV_ENDPOINT.
PYTORCH_CONTAINER = "pytorch"
PYTORCH_PORT = {"name": "pytorchjob-port", "containerPort": 23456}
# Of all pods, from training-operator (kubeflow.org/v1) and mpi-operator.
_JOB_LABEL, _OPERATOR_LABEL = "training.kubeflow.org/job-name", "training.kubeflow.org/operator-name"
# The pod of mpirun trains nothing.
MPI_LAUNCHER_CPUS, MPI_LAUNCHER_MEMORY = "1", "1Gi"
MPI_PORT = {"name": "ssh", "containerPort": contract.SSH_PORT}
# ssh refuses keys that others can read, so both ends use a copy of the keys in memory.
_KEYS = {"name": "keys", "mountPath": contract.SSH_PRIVATE}
_KEYS_BYTES = 1 << 20


@dataclass(frozen=True)
class PyTorchJob(ManifestRequest):
    """training-operator 1.9: elastic torchrun, with a c10d rendezvous at the first worker.

    Ranks restart in their pods (maxRestarts), and a pod that fails restarts too.
    """

    POD_SUFFIX: ClassVar[str] = "-worker-{last}"

    @property
    def pod_labels(self) -> Mapping[str, str]:
        return {_JOB_LABEL: self.name, _OPERATOR_LABEL: "pytorchjob-controller"}

    def documents(self) -> list[Document]:
        container = pods.training_container(
            self, PYTORCH_CONTAINER, pods.launch(self), ports=[PYTORCH_PORT], resources=pods.resources(self)
        )
        worker = {
            "replicas": self.nodes,
            "restartPolicy": "OnFailure" if self.max_restarts else "Never",
            "template": pods.template(pods.training_pod(self, container)),
        }
        # When the restarts of all pods reach backoffLimit (PastBackoffLimit), the job fails, and all its pods are
        # deleted. If the first pod is lost, all pods restart. Without restarts, a pod that fails ends the job and
        # stays; a backoffLimit of 0 would delete it.
        limit = {"backoffLimit": self.max_restarts * self.nodes + 1} if self.max_restarts else {}
        spec = {
            "nprocPerNode": str(pods.operator_ranks(self)),
            "runPolicy": {"cleanPodPolicy": "Running", **limit},
            "elasticPolicy": {
                "rdzvBackend": "c10d",
                "minReplicas": self.nodes,
                "maxReplicas": self.nodes,
                "maxRestarts": self.max_restarts,
            },
            "pytorchReplicaSpecs": {"Worker": worker},
        }
        return [pods.job(self, "kubeflow.org/v1", "PyTorchJob", spec)]


@dataclass(frozen=True)
class MPIJob(ManifestRequest):
    """mpi-operator 0.8 (v2beta1): Intel MPI's mpirun over ssh, with the operator's keys and hostfile.

    A launcher that fails is replaced, at most `max_restarts` times. The workers keep running.
    """

    POD_SUFFIX: ClassVar[str] = "-worker-{last}"

    @property
    def pod_labels(self) -> Mapping[str, str]:
        return {_JOB_LABEL: self.name, _OPERATOR_LABEL: "mpi-operator"}

    @property
    def local_world_size(self) -> int | None:
        """The ranks of a pod, which are slots of a hostfile: never None."""
        if self.ranks_per_node == "auto":
            raise UsageError("--ranks-per-node is 'auto', expected a number for an mpijob: a hostfile lists slots")
        return super().local_world_size or 1

    def documents(self) -> list[Document]:
        worker = pods.training_container(
            self,
            "worker",
            ["sshd"],
            ports=[MPI_PORT],
            resources=pods.resources(self),
            readinessProbe={"tcpSocket": {"port": contract.SSH_PORT}, "periodSeconds": 2},
            # Processes that sshd starts do not inherit its environment: the launcher sends the ranks' variables.
            env=[{"name": "HOME", "value": TMP}, pods.grace(self)],
        )
        launch = launchers.mpi_launch(self.command, variables=pods.environment(self))
        launcher = pods.container(self, "launcher", launch)
        launcher["resources"] = pods.limits(MPI_LAUNCHER_CPUS, MPI_LAUNCHER_MEMORY)
        spec = {
            "mpiImplementation": "Intel",
            "slotsPerWorker": pods.operator_ranks(self),
            "sshAuthMountPath": contract.SSH_KEYS,
            "launcherCreationPolicy": "WaitForWorkersReady",
            "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": self.max_restarts},
            "mpiReplicaSpecs": {
                "Launcher": _mpi_replicas(1, "Never", pods.template(pods.pod(self, launcher))),
                "Worker": _mpi_replicas(self.nodes, "OnFailure", pods.template(pods.training_pod(self, worker))),
            },
        }
        return [pods.job(self, "kubeflow.org/v2beta1", "MPIJob", spec)]


def _mpi_replicas(replicas: int, restart_policy: str, template: Document) -> Document:
    pod = template["spec"]
    pod["containers"][0]["volumeMounts"].append(dict(_KEYS))
    pod["volumes"].append(pods.memory_volume(_KEYS["name"], _KEYS_BYTES))
    return {"replicas": replicas, "restartPolicy": restart_policy, "template": template}


Job = TrainJob | MPIJob | PyTorchJob
Manifest = Job | Runtime
