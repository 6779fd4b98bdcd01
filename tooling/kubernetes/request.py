"""A job on Kubernetes: the options of `./inv manifest`, their checks, and the values that follow from them."""

import hashlib
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, ClassVar

from cpu_train_stack import contract
from cpu_train_stack.cli.account import TMP
from cpu_train_stack.cli.errors import UsageError, check_all
from cpu_train_stack.cli.numbers import MOST_CPUS, MOST_NODES, check_at_least
from tooling.cluster import compose, launchers
from tooling.image import lock
from tooling.image.sign import KeyOption
from tooling.kubernetes import syntax

# The mount point of the claim. Jobs create their own folders there: Kubernetes creates those of a subPath as root.
CLAIM = "/pvc"
# For the size of /dev/shm if the number of ranks depends on the NUMA nodes. More ranks hardly change the size.
MANY_RANKS = 8
_MEBIBYTE = 1 << 20
_IN_CLAIM = re.compile(rf"(^|[=:,]){CLAIM}(/|$)")
_SHM_STEP = 64 * _MEBIBYTE
# Operators store numbers of restarts in 32 bits: of all pods together, for a PyTorchJob.
_MOST_RESTARTS = 10_000


@dataclass(frozen=True)
class PodRequest:
    """The options of pods that train, as typed. Raises UsageError, one line with all invalid options."""

    name: Annotated[str, "the job's name; the names of its pods begin with this name"] = "train"
    namespace: Annotated[str, "the namespace; default: that of kubectl's context"] = ""
    image_lock: Annotated[str, "run the image in this image.lock.json of ./inv push, by digest"] = ""
    image: Annotated[str, "run the image HOST/NAME@sha256:…, instead of --image-lock"] = ""
    key: KeyOption = None
    nodes: Annotated[int, "pods that train, one on each node of the cluster"] = 2
    ranks_per_node: Annotated[
        str,
        "training processes in each pod, or auto: one for each NUMA node; default: auto (mpijob: 1, never auto)",
    ] = ""
    cpus: Annotated[
        int, "required: CPUs of each pod (request and limit); leave some of the node's CPUs for the system"
    ] = 0
    memory: Annotated[
        str, "required: memory of each pod (request and limit), including /dev/shm, for example 128Gi"
    ] = ""
    node_cpus: Annotated[
        int, "hardware threads of a node, which determine the size of /dev/shm; default: twice --cpus"
    ] = 0
    node_memory: Annotated[str, "memory of a node, for a warning if --memory leaves none for the system"] = ""
    pvc: Annotated[
        str, "the PersistentVolumeClaim for models, data and output, mounted at /pvc; default: none"
    ] = ""
    node_selector: Annotated[tuple[str, ...], "KEY=VALUE, a label that nodes must have; may be repeated"] = ()
    scheduler_name: Annotated[str, "the scheduler of the pods, for example volcano; default: the cluster's"] = ""
    openshift: Annotated[bool, "leave the user and group of the pods to the cluster, as OpenShift requires"] = (
        False
    )
    env: Annotated[tuple[str, ...], "NAME=VALUE for every rank; may be repeated"] = ()
    secret_env: Annotated[
        tuple[str, ...], "NAME=SECRET/KEY, a variable for every rank from a secret; may be repeated"
    ] = ()
    pull_secret: Annotated[str, "the secret with the credentials of the registry; default: none"] = ""
    max_restarts: Annotated[int, "restarts after a failure, from the last checkpoint"] = 3
    grace_seconds: Annotated[
        int,
        "the grace period of a pod that the cluster ends, for example on a drained node: the time in which train "
        "saves a checkpoint, of about 12 bytes for each trained weight",
    ] = 60

    def __post_init__(self) -> None:
        check_all(self._checks())
        if self.shm_bytes >= self.memory_bytes:
            raise UsageError(
                f"--memory is {self.memory}, but shared memory may take {self.shm_bytes // _MEBIBYTE} MiB of it "
                "(16 MiB for each hardware thread of the node): raise --memory, or pass --node-cpus"
            )

    def _checks(self) -> list[Callable[[], object]]:
        checks: list[Callable[[], object]] = [
            partial(check_at_least, "--nodes", self.nodes, 1, MOST_NODES),
            partial(_check_cpus, self.cpus),
            partial(check_at_least, "--max-restarts", self.max_restarts, 0, _MOST_RESTARTS),
            partial(check_at_least, "--grace-seconds", self.grace_seconds, 10, 86400),
            partial(check_at_least, "--node-cpus", self.node_cpus, 0, MOST_CPUS),
            lambda: self.reference,
            lambda: self.memory_bytes,
            lambda: self.local_world_size,
        ]
        checks += [
            partial(syntax.dns_label, flag, text)
            for flag, text in (
                ("--namespace", self.namespace),
                ("--scheduler-name", self.scheduler_name),
            )
            if text
        ]
        if self.pvc:
            checks.append(partial(syntax.resource_name, "--pvc", self.pvc))
        checks += [partial(syntax.label, "--node-selector", text) for text in self.node_selector]
        checks += [partial(_variable, "--env", text) for text in self.env]
        checks += [partial(_secret, text) for text in self.secret_env]
        checks += [
            partial(launchers.check_distinct, "--node-selector", self.node_selector),
            partial(launchers.check_distinct, "--env and --secret-env", (*self.env, *self.secret_env)),
        ]
        if self.pull_secret:
            checks.append(partial(syntax.resource_name, "--pull-secret", self.pull_secret))
        if self.node_memory:
            checks.append(partial(syntax.memory, "--node-memory", self.node_memory))
        return checks

    @property
    def job_source(self) -> Mapping[str, object]:
        """The value of the job's name for `train`, as Kubernetes describes the value of a variable."""
        raise NotImplementedError

    @property
    def pod_labels(self) -> Mapping[str, str]:
        """The labels that all pods of the job have, and no others. Empty if there is no namespace for a policy."""
        raise NotImplementedError

    @cached_property
    def reference(self) -> str:
        """The image by its digest."""
        if bool(self.image) == bool(self.image_lock):
            found = "both --image and --image-lock" if self.image else "neither --image nor --image-lock"
            raise UsageError(f"found {found}, expected --image-lock image.lock.json or --image HOST/NAME@sha256:…")
        return lock.read(Path(self.image_lock)).image if self.image_lock else syntax.image(self.image)

    @property
    def local_world_size(self) -> int | None:
        """The ranks of a pod. None: one for each NUMA node of the pod, within its quota."""
        if self.ranks_per_node in ("", "auto"):
            return None
        if not re.fullmatch("[1-9][0-9]{0,3}", self.ranks_per_node):
            raise UsageError(
                f"--ranks-per-node is {self.ranks_per_node!r}, expected 1 or more, or auto: one for each NUMA node"
            )
        return int(self.ranks_per_node)

    @property
    def memory_bytes(self) -> int:
        """The memory limit of a pod, including /dev/shm."""
        return syntax.memory("--memory", self.memory)

    @property
    def shm_bytes(self) -> int:
        """The size of a pod's /dev/shm. It depends on the CPUs of the node, not on those of the pod.

        Without --node-cpus: twice the CPUs of the pod, as on a node with two hardware threads per core.
        """
        needed = compose.shm_bytes(self.local_world_size or MANY_RANKS, self.node_cpus or 2 * self.cpus)
        return -(-needed // _SHM_STEP) * _SHM_STEP

    @property
    def node_labels(self) -> Mapping[str, str]:
        return dict(syntax.label("--node-selector", text) for text in self.node_selector)

    @property
    def variables(self) -> Mapping[str, str]:
        return dict(_variable("--env", text) for text in self.env)

    @property
    def secret_variables(self) -> Mapping[str, tuple[str, str]]:
        """Map a variable to its secret and the key in the secret."""
        return dict(_secret(text) for text in self.secret_env)


@dataclass(frozen=True)
class ManifestRequest(PodRequest):
    """The options of a job, as typed. Raises UsageError, one line with all invalid options."""

    # The end of the longest name of the job's pods. {last} is the number of the last pod.
    POD_SUFFIX: ClassVar[str]

    command: tuple[str, ...] = ()
    queue: Annotated[str, "the LocalQueue of Kueue that admits the job; default: none"] = ""

    def _checks(self) -> list[Callable[[], object]]:
        checks: list[Callable[[], object]] = [
            partial(syntax.job_name, self.name, self.POD_SUFFIX.format(last=self.nodes - 1)),
            *super()._checks(),
            self._check_command,
        ]
        if self.queue:
            checks.append(partial(syntax.dns_label, "--queue", self.queue))
        return checks

    @property
    def job(self) -> str:
        """The job's name for `train`: the same for every start of its pods, different for another command."""
        text = "\0".join(self.command)
        return f"{self.namespace}/{self.name}/{hashlib.sha256(text.encode()).hexdigest()[:12]}".lstrip("/")

    @property
    def job_source(self) -> Mapping[str, object]:
        return {"value": self.job}

    def _check_command(self) -> None:
        launchers.check_rank_command(self.command, f"-- train --output_dir {CLAIM}/output/first …")
        on_claim = [text for text in (*self.command, *self.env) if _IN_CLAIM.search(text)]
        if on_claim and not self.pvc:
            raise UsageError(
                f"{on_claim[0]!r} is a path on the claim, but --pvc is missing: add --pvc with the claim's name"
            )


def pod_warnings(request: PodRequest) -> list[str]:
    """One line for each valid option of the pods with a likely unwanted effect."""
    found = []
    if not request.pod_labels:
        found.append(
            "--cluster-scope: no NetworkPolicy is written, because it belongs to a namespace: create one in each "
            "namespace, or every pod that reaches a job can run code as the job"
        )
    if request.node_cpus and request.cpus >= request.node_cpus:
        found.append(
            f"--cpus {request.cpus} of the node's {request.node_cpus} leaves none for the kubelet and the system: "
            "the pods would stay Pending"
        )
    if request.node_memory and request.memory_bytes >= syntax.memory("--node-memory", request.node_memory):
        found.append(
            f"--memory {request.memory} of the node's {request.node_memory} leaves none for the kubelet and the "
            "system: the pods would stay Pending"
        )
    if request.shm_bytes > request.memory_bytes / 2:
        found.append(
            f"shared memory may take {request.shm_bytes // _MEBIBYTE} MiB of the pod's {request.memory}, which "
            "the ranks also need: raise --memory, or pass --node-cpus if the node has fewer hardware threads"
        )
    return found


def warnings(request: ManifestRequest) -> list[str]:
    """One line for each valid option with a likely unwanted effect."""
    found = pod_warnings(request)
    output = _output(request.command)
    if request.command[0] != "train" or output is None:
        return found
    if not request.pvc:
        unwritable = f"; --output_dir is {output!r}, but only {TMP} is writable"
        found.append(
            "without --pvc, weights and checkpoints are deleted with the pods, and restarts train from the start"
            + ("" if _is_below(output, TMP) else unwritable)
        )
    elif not _is_below(output, CLAIM):
        found.append(
            f"--output_dir is {output!r}, expected a folder below {CLAIM}, where the claim is mounted: "
            "files elsewhere are deleted with the pods"
        )
    return found


def _check_cpus(value: int) -> None:
    if value == 0:
        raise UsageError("--cpus is missing, expected 1 or more")
    check_at_least("--cpus", value, 1, MOST_CPUS)


def _variable(flag: str, text: str) -> tuple[str, str]:
    name, value = launchers.assignment(flag, text)
    if name == contract.GRACE_SECONDS:
        raise UsageError(f"{flag} {name}: use --grace-seconds, from which every container gets this variable")
    return name, value


def _secret(text: str) -> tuple[str, tuple[str, str]]:
    name, value = _variable("--secret-env", text)
    return name, syntax.secret_key("--secret-env", value)


def _output(command: Sequence[str]) -> str | None:
    """The last value of --output_dir: empty if it is missing, None if a config file may contain it."""
    found = None if command[1:2] and not command[1].startswith("-") else ""
    for place, word in enumerate(command):
        name, equals, value = word.partition("=")
        if name in ("--output_dir", "--output-dir"):
            found = value if equals else "".join(command[place + 1 : place + 2])
    return found


def _is_below(path: str, folder: str) -> bool:
    return posixpath.normpath(path).startswith(f"{folder}/")
