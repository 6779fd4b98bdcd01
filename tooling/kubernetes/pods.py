"""The parts that the pods of all operators share: the container, its limits, volumes and security context."""

from collections.abc import Mapping, Sequence
from typing import Any

from cpu_train_stack import contract
from cpu_train_stack.cli.account import TMP
from tooling.cluster import launchers
from tooling.kubernetes.request import CLAIM, ManifestRequest, PodRequest

Document = dict[str, Any]

# The image's user, and the group of the files on a claim.
UID = 1000
# How much of the grace period the launchers keep to stop ranks that have not saved in time. At most a third of it.
STOP_SECONDS = 10
# From the start of the first pod to the start of the last: pods are scheduled one by one, and each node pulls the
# image.
START_SECONDS = 1800
_MEBIBYTE = 1 << 20
# Kueue suspends a job with this label until the queue has room for all pods of the job.
QUEUE = "kueue.x-k8s.io/queue-name"
LABELS = {"app.kubernetes.io/name": "cpu-train-stack"}


def manifest(request: PodRequest, version: str, kind: str, spec: Document, **labels: str) -> Document:
    """An object with the name of the job, labels, and a namespace if the request has one."""
    namespace = {"namespace": request.namespace} if request.namespace else {}
    metadata = {"name": request.name, **namespace, "labels": {**LABELS, **labels}}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def job(request: ManifestRequest, version: str, kind: str, spec: Document) -> Document:
    """A job: the object that Kueue admits, if the request names a queue."""
    return manifest(request, version, kind, spec, **({QUEUE: request.queue} if request.queue else {}))


def network_policy(request: PodRequest, labels: Mapping[str, str]) -> Document:
    """Only pods with these labels can open connections to pods with them, at all ports. Pods can connect to all.

    Whoever reaches a port of a job runs code as the job. No operator connects to the pods, and the kubelet of the
    node, for its probes, is not subject to policies.
    """
    selector = {"podSelector": {"matchLabels": dict(labels)}}
    spec = {**selector, "policyTypes": ["Ingress"], "ingress": [{"from": [selector]}]}
    return manifest(request, "networking.k8s.io/v1", "NetworkPolicy", spec)


def limits(cpu: str, memory: str) -> Document:
    """Equal requests and limits: the pod is Guaranteed, and the static CPU manager gives it exclusive CPUs."""
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}}


def resources(request: PodRequest) -> Document:
    """The requests and limits of a pod that trains."""
    return limits(str(request.cpus), request.memory)


def grace(request: PodRequest) -> Document:
    """The variable with the seconds that the ranks have to save. The last seconds are the launcher's."""
    seconds = request.grace_seconds - min(STOP_SECONDS, request.grace_seconds // 3)
    return {"name": contract.GRACE_SECONDS, "value": str(seconds)}


def environment(request: PodRequest) -> dict[str, Any]:
    """The variables of the ranks: the stack's, the user's, and those with a value from a secret."""
    own = {
        "HF_HOME": f"{CLAIM if request.pvc else TMP}/huggingface",
        "HOME": TMP,
    }
    plain = {name: {"value": escape(value)} for name, value in {**own, **request.variables}.items()}
    job = {contract.IMAGE: {"value": request.reference}, contract.JOB: request.job_source}
    job[contract.GRACE_SECONDS] = {"value": grace(request)["value"]}
    secret = {
        name: {"valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
        for name, (secret, key) in request.secret_variables.items()
    }
    return {**job, **plain, **secret}


def container(request: PodRequest, name: str, args: Sequence[str]) -> Document:
    """A container that runs the image's entrypoint with `args`. Only its volumes are writable."""
    return {
        "name": name,
        "image": request.reference,
        "imagePullPolicy": "IfNotPresent",
        # The last lines of a container that failed come into the pod's status, and into the operator's events.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **({"args": [escape(argument) for argument in args]} if args else {}),
        "env": [{"name": name, **value} for name, value in environment(request).items()],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [{"name": "tmp", "mountPath": TMP}],
    }


def training_container(request: PodRequest, name: str, args: Sequence[str], **fields: object) -> Document:
    """A container for ranks, with /dev/shm, the claim if the request has one, and `fields`."""
    result = {**container(request, name, args), **fields}
    result["volumeMounts"].append({"name": "shm", "mountPath": "/dev/shm"})  # noqa: S108 - a path in the pod
    if request.pvc:
        result["volumeMounts"].append({"name": "claim", "mountPath": CLAIM})
    return result


def pod(request: PodRequest, container: Document) -> Document:
    selector = {"nodeSelector": dict(request.node_labels)} if request.node_labels else {}
    pull = {"imagePullSecrets": [{"name": request.pull_secret}]} if request.pull_secret else {}
    scheduler = {"schedulerName": request.scheduler_name} if request.scheduler_name else {}
    return {
        **selector,
        **scheduler,
        **pull,
        "automountServiceAccountToken": False,
        # A service named "master" would set MASTER_PORT=tcp://… in every pod of the namespace.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": request.grace_seconds,
        "securityContext": {
            "runAsNonRoot": True,
            # OpenShift refuses ids outside the range of the namespace, and sets one of them.
            **({} if request.openshift else {"runAsUser": UID, "runAsGroup": UID, "fsGroup": UID}),
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }


def training_pod(request: PodRequest, container: Document) -> Document:
    """A pod with one container for ranks, on a node of its own if there are enough nodes."""
    result = pod(request, container)
    result["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": dict(request.pod_labels or LABELS)},
        }
    ]
    result["volumes"].append(memory_volume("shm", request.shm_bytes))
    if request.pvc:
        result["volumes"].append({"name": "claim", "persistentVolumeClaim": {"claimName": request.pvc}})
    return result


def template(spec: Document, **labels: str) -> Document:
    return {"metadata": {"labels": {**LABELS, **labels}}, "spec": spec}


def memory_volume(name: str, size: int) -> Document:
    """A volume in memory of at most `size` bytes. Its files count against the pod's memory limit."""
    return {"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": f"{size // _MEBIBYTE}Mi"}}


def launch(request: ManifestRequest) -> list[str]:
    """The command line of a node. The image's launcher finds the other nodes through the operator's variables."""
    return launchers.launch(request.command, ranks_per_node=request.local_world_size, timeout=START_SECONDS)


def operator_ranks(request: PodRequest) -> int:
    """The value of the operator's field for ranks per pod. Never "auto", which means one rank for each CPU.

    Trainer counts the CPUs that the pod requests. training-operator passes it to torchrun, which ignores limits.
    """
    return request.local_world_size or 1


def escape(text: str) -> str:
    """Double dollar signs: Kubernetes replaces $(NAME) with the value of a variable."""
    return text.replace("$", "$$")
