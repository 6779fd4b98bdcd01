"""What the pods of all three kinds have in common: one container of the image, its limits, folders and rights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from entrypoints import contract
from tooling.cluster import launchers
from tooling.kubernetes.request import CLAIM, TMP, Request

Document = dict[str, Any]

# The image's user, and the group that owns a claim's files.
UID = 1000
# SIGTERM to SIGKILL: the image's launchers end their ranks within 5 s.
GRACE_SECONDS = 30
# From the start of the first pod to the last's: nothing schedules them together, and each node pulls the image.
START_SECONDS = 1800
_MEBIBYTE = 1 << 20
LABELS = {"app.kubernetes.io/name": "cpu-train-stack"}


def metadata(request: Request) -> Document:
    """An object's name and labels; the default namespace is kubectl's."""
    namespace = {"namespace": request.namespace} if request.namespace else {}
    return {"name": request.name, **namespace, "labels": dict(LABELS)}


def limits(cpu: str, memory: str) -> Document:
    """Requests equal to limits: the pod is Guaranteed, and the static CPU manager gives it exclusive CPUs."""
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}}


def resources(request: Request) -> Document:
    """Of a pod that trains."""
    return limits(str(request.cpus), request.memory)


def environment(request: Request) -> dict[str, Any]:
    """The variables of a job: the stack's, the user's, and those with a value from a secret."""
    own = {
        contract.IMAGE: request.image,
        contract.JOB: request.job,
        "HF_HOME": f"{CLAIM if request.pvc else TMP}/huggingface",
        "HOME": TMP,
    }
    plain = {name: {"value": escape(value)} for name, value in {**own, **request.env}.items()}
    secret = {
        name: {"valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
        for name, (secret, key) in request.secret_env.items()
    }
    return {**plain, **secret}


def variables(environment: dict[str, Any]) -> list[Document]:
    """The variables as a container's list."""
    return [{"name": name, **value} for name, value in environment.items()]


def container(request: Request, name: str, args: Sequence[str]) -> Document:
    """A container of the image, whose entrypoint gets `args`. Its root is read-only: only volumes are writable."""
    return {
        "name": name,
        "image": request.image,
        "imagePullPolicy": "IfNotPresent",
        **({"args": [escape(word) for word in args]} if args else {}),
        "env": variables(environment(request)),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [{"name": "tmp", "mountPath": TMP}],
    }


def training_container(request: Request, name: str, args: Sequence[str], **fields: object) -> Document:
    """A container for ranks, with /dev/shm, the claim if any, and more `fields`."""
    result = {**container(request, name, args), **fields}
    result["volumeMounts"].append({"name": "shm", "mountPath": "/dev/shm"})  # noqa: S108 - the pod's own
    if request.pvc:
        result["volumeMounts"].append({"name": "claim", "mountPath": CLAIM})
    return result


def pod(request: Request, container: Document) -> Document:
    """The pod around a container."""
    selector = {"nodeSelector": dict(request.node_selector)} if request.node_selector else {}
    pull = {"imagePullSecrets": [{"name": request.pull_secret}]} if request.pull_secret else {}
    return {
        **selector,
        **pull,
        "automountServiceAccountToken": False,
        # A service named "master" would set MASTER_PORT=tcp://… in every pod of the namespace.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": UID,
            "runAsGroup": UID,
            "fsGroup": UID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }


def training_pod(request: Request, container: Document) -> Document:
    """The pod around a container for ranks."""
    result = pod(request, container)
    result["volumes"].append(memory_volume("shm", request.shm_bytes))
    if request.pvc:
        result["volumes"].append({"name": "claim", "persistentVolumeClaim": {"claimName": request.pvc}})
    return result


def memory_volume(name: str, size: int) -> Document:
    """A volume in memory, `size` bytes at most. Its contents count against the pod's memory limit."""
    return {"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": f"{size // _MEBIBYTE}Mi"}}


def launch(request: Request) -> list[str]:
    """The image's launcher around the job's command. It finds the other nodes through the operator's variables."""
    return launchers.launch(request.command, ranks_per_node=request.ranks_per_node, timeout=START_SECONDS)


def operators_ranks(request: Request) -> int:
    """The number of ranks in the operator's own field: never "auto", which means a rank for each CPU.

    Trainer counts the CPUs that the pod requests; training-operator leaves it to torchrun, which ignores limits.
    """
    return request.ranks_per_node or 1


def escape(text: str) -> str:
    """Doubles dollar signs, because Kubernetes replaces $(NAME) with a variable's value."""
    return text.replace("$", "$$")
