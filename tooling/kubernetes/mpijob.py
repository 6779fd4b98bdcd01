"""An MPIJob (mpi-operator 0.8, v2beta1): Intel MPI's mpirun over ssh, with the operator's keys and hostfile."""

from __future__ import annotations

from entrypoints import contract
from entrypoints.launch.mpi import ssh
from tooling.cluster import launchers
from tooling.kubernetes import pods
from tooling.kubernetes.pods import Document
from tooling.kubernetes.request import TMP, Request

# mpirun and its watch only start ranks and listen to them.
LAUNCHER_CPUS, LAUNCHER_MEMORY = "1", "1Gi"
PORT = {"name": "ssh", "containerPort": contract.SSH_PORT}
# ssh refuses keys that others can read: each end works on a copy here, in memory.
_KEYS = {"name": "keys", "mountPath": str(ssh.PRIVATE)}
_KEYS_BYTES = 1 << 20


def documents(request: Request) -> list[Document]:
    """The job. A launcher that fails is replaced, at most `max_restarts` times; the workers stay."""
    worker = pods.training_container(
        request,
        "worker",
        ["sshd"],
        ports=[PORT],
        resources=pods.resources(request),
        readinessProbe={"tcpSocket": {"port": contract.SSH_PORT}, "periodSeconds": 2},
        # The ranks' own come from the launcher: what sshd starts does not inherit them.
        env=[{"name": "HOME", "value": TMP}],
    )
    launch = launchers.mpi_launch(request.command, variables=pods.environment(request))
    launcher = pods.container(request, "launcher", launch)
    launcher["resources"] = pods.limits(LAUNCHER_CPUS, LAUNCHER_MEMORY)
    return [
        {
            "apiVersion": "kubeflow.org/v2beta1",
            "kind": "MPIJob",
            "metadata": pods.metadata(request),
            "spec": {
                "mpiImplementation": "Intel",
                "slotsPerWorker": pods.operators_ranks(request),
                "sshAuthMountPath": ssh.DEFAULT_KEYS,
                "launcherCreationPolicy": "WaitForWorkersReady",
                "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": request.max_restarts},
                "mpiReplicaSpecs": {
                    "Launcher": _replicas(1, "Never", pods.pod(request, launcher)),
                    "Worker": _replicas(request.nodes, "OnFailure", pods.training_pod(request, worker)),
                },
            },
        }
    ]


def _replicas(replicas: int, restart: str, pod: Document) -> Document:
    pod["containers"][0]["volumeMounts"].append(dict(_KEYS))
    pod["volumes"].append(pods.memory_volume(_KEYS["name"], _KEYS_BYTES))
    template = {"metadata": {"labels": dict(pods.LABELS)}, "spec": pod}
    return {"replicas": replicas, "restartPolicy": restart, "template": template}
