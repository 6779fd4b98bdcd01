"""The input of a manifest: the options as typed, and the request after validation."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeVar

from tooling.basis.errors import UsageError
from tooling.cluster import compose
from tooling.image import lock as image_lock
from tooling.kubernetes import syntax

# Where the claim is mounted. Jobs create the folders that they write to: a subPath would belong to root.
CLAIM = "/pvc"
# A volume of each pod; the root file system is read-only.
TMP = "/tmp"  # noqa: S108 - a path in the pods
DEFAULT_NAME = "train"
# Assumed ranks of a node if its NUMA nodes set the number: for the size of /dev/shm, which hardly depends on it.
MANY_RANKS = 8
_MEBIBYTE = 1 << 20
_IN_CLAIM = re.compile(rf"(^|[=:,]){CLAIM}(/|$)")
_T = TypeVar("_T")
_SHM_STEP = 64 * _MEBIBYTE
_LAUNCHERS = ("launch", "mpi-launch", "mpirun", "torchrun")
# Set by the operators and by the image's launchers.
_PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# What follows a job's name in its longest pod name, by kind; {last} is the last pod's number.
POD_SUFFIXES = {"pytorchjob": "-worker-{last}", "trainjob": "-node-0-{last}", "mpijob": "-worker-{last}"}


@dataclass(frozen=True)
class Options:
    """The options of `./inv manifest KIND`, as typed; `command` is what follows --."""

    command: tuple[str, ...]
    name: Annotated[str, "the job's name, and the prefix of its pods' names"] = DEFAULT_NAME
    namespace: Annotated[str, "the namespace; default: that of kubectl's context"] = ""
    image: Annotated[str, "HOST/NAME@sha256:…, instead of --image-lock"] = ""
    image_lock: Annotated[str, "an image.lock.json of ./inv push: run that image, by digest"] = ""
    nodes: Annotated[int, "pods that train; each runs on its own node of the cluster"] = 2
    cpus: Annotated[int, "CPUs of each pod, its request and its limit; leave some CPUs for the node's system"] = 0
    memory: Annotated[
        str, "memory of each pod, its request and its limit, such as 128Gi; /dev/shm counts as memory"
    ] = ""
    ranks_per_node: Annotated[str, "ranks in each pod; default: one for each NUMA node (mpijob: 1)"] = ""
    pvc: Annotated[str, "a PersistentVolumeClaim for models, data and output, mounted at /pvc; default: none"] = ""
    node_selector: Annotated[tuple[str, ...], "KEY=VALUE, a label that the nodes must have; may be repeated"] = ()
    env: Annotated[tuple[str, ...], "NAME=VALUE for every rank; may be repeated"] = ()
    secret_env: Annotated[
        tuple[str, ...], "NAME=SECRET/KEY: a variable for every rank, with a secret's value; may be repeated"
    ] = ()
    pull_secret: Annotated[str, "the secret with the registry's credentials"] = ""
    max_restarts: Annotated[int, "restarts after a failure, each from the last checkpoint"] = 3
    node_cpus: Annotated[int, "hardware threads of a node, which set the size of /dev/shm; 0: twice --cpus"] = 0
    node_memory: Annotated[str, "memory of a node: warn if --memory leaves none for the system"] = ""


@dataclass(frozen=True)
class Request:
    """A validated job: `nodes` pods of `cpus` CPUs and `memory_bytes` each.

    `pvc` is empty if nothing is to outlast the pods. `ranks_per_node` None: one for each NUMA node of a pod,
    within its quota. `secret_env` maps a variable to a secret and its key. `node_cpus`: hardware threads of a
    node, 0 if unknown.
    """

    kind: str
    name: str
    namespace: str
    image: str
    nodes: int
    cpus: int
    memory: str
    ranks_per_node: int | None
    pvc: str
    command: tuple[str, ...]
    node_selector: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    secret_env: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    pull_secret: str = ""
    max_restarts: int = 3
    node_cpus: int = 0
    node_memory: str = ""

    @property
    def memory_bytes(self) -> int:
        """The limit of a pod, including /dev/shm."""
        return syntax.memory("--memory", self.memory)

    @property
    def shm_bytes(self) -> int:
        """The size of a pod's /dev/shm. It depends on the CPUs of the node, not on those of the pod.

        Default for an unknown number: twice the pod's, as on a node with two hardware threads per core.
        """
        needed = compose.shm_bytes(self.ranks_per_node or MANY_RANKS, self.node_cpus or 2 * self.cpus)
        return -(-needed // _SHM_STEP) * _SHM_STEP

    @property
    def job(self) -> str:
        """The job's name for `train`: the same for every start of its pods, different for another command."""
        text = "\0".join(self.command)
        return f"{self.namespace}/{self.name}/{hashlib.sha256(text.encode()).hexdigest()[:12]}".lstrip("/")


def parse(kind: str, options: Options) -> Request:
    """The request. Raises UsageError, one line with all invalid options."""
    mistakes: list[str] = []

    def checked(otherwise: _T, check: Callable[..., _T], *arguments: object) -> _T:
        try:
            return check(*arguments)
        except UsageError as error:
            mistakes.append(str(error))
            return otherwise

    def optional(check: Callable[[str, str], str], flag: str, text: str) -> str:
        return checked("", check, flag, text) if text else ""

    for flag, value, least in (
        ("--nodes", options.nodes, 1),
        ("--cpus", options.cpus, 1),
        ("--max-restarts", options.max_restarts, 0),
        ("--node-cpus", options.node_cpus, 0),
    ):
        checked(None, _at_least, flag, value, least)
    pod_suffix = POD_SUFFIXES[kind].format(last=options.nodes - 1)
    no_words: tuple[str, ...] = ()
    request = Request(
        kind=kind,
        name=checked("", syntax.job_name, options.name, pod_suffix),
        namespace=checked("", syntax.namespace, options.namespace) if options.namespace else "",
        image=checked("", _image, options),
        nodes=options.nodes,
        cpus=options.cpus,
        memory=checked("", _memory, "--memory", options.memory),
        ranks_per_node=checked(None, _ranks, kind, options.ranks_per_node),
        pvc=optional(syntax.resource_name, "--pvc", options.pvc),
        command=checked(no_words, _command, options),
        node_selector=dict(checked(("", ""), syntax.label, "--node-selector", it) for it in options.node_selector),
        env=dict(checked(("", ""), _assignment, "--env", it) for it in options.env),
        secret_env=dict(checked(("", ("", "")), _secret, it) for it in options.secret_env),
        pull_secret=optional(syntax.resource_name, "--pull-secret", options.pull_secret),
        max_restarts=options.max_restarts,
        node_cpus=options.node_cpus,
        node_memory=optional(_memory, "--node-memory", options.node_memory),
    )
    if not mistakes:
        checked(None, _check_sizes, request)
    if mistakes:
        raise UsageError("; ".join(mistakes))
    return request


def warnings(request: Request) -> list[str]:
    """Options that the cluster would accept and the user would regret."""
    found = []
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
    output = _output(request.command)
    if request.command[0] != "train" or output is None:
        return found
    if not request.pvc:
        unwritable = f"; --output_dir is {output!r}, but only {TMP} is writable"
        found.append(
            "without --pvc, weights and checkpoints are deleted with the pods, and restarts train from the start"
            + ("" if output.startswith(f"{TMP}/") else unwritable)
        )
    elif not output.startswith(f"{CLAIM}/"):
        found.append(
            f"--output_dir is {output!r}, expected a folder below {CLAIM}, where the claim is mounted: "
            "files elsewhere are deleted with the pods"
        )
    return found


def _check_sizes(request: Request) -> None:
    if request.shm_bytes >= request.memory_bytes:
        raise UsageError(
            f"--memory is {request.memory}, but shared memory may take {request.shm_bytes // _MEBIBYTE} MiB of it "
            "(16 MiB for each hardware thread of the node): raise --memory, or pass --node-cpus if it has fewer"
        )


def _at_least(flag: str, value: int, least: int) -> None:
    if value < least:
        found = "missing" if flag == "--cpus" and value == 0 else value
        raise UsageError(f"{flag} is {found}, expected {least} or more")


def _memory(flag: str, text: str) -> str:
    syntax.memory(flag, text)
    return text


def _image(options: Options) -> str:
    if bool(options.image) == bool(options.image_lock):
        found = "both --image and --image-lock" if options.image else "neither --image nor --image-lock"
        raise UsageError(f"found {found}, expected --image-lock image.lock.json or --image HOST/NAME@sha256:…")
    return image_lock.read(Path(options.image_lock)).image if options.image_lock else syntax.image(options.image)


def _ranks(kind: str, text: str) -> int | None:
    if kind == "mpijob" and text == "auto":
        raise UsageError(
            "--ranks-per-node is 'auto', expected a number for an mpijob, for example 2: a hostfile lists slots"
        )
    if text in ("", "auto"):
        return 1 if kind == "mpijob" else None
    if not re.fullmatch("[1-9][0-9]{0,3}", text):
        raise UsageError(f"--ranks-per-node is {text!r}, expected 1 or more, or auto: one for each NUMA node")
    return int(text)


def _command(options: Options) -> tuple[str, ...]:
    words = options.command
    if not words:
        raise UsageError("no command: write it after --, for example -- train --output_dir /pvc/output/first …")
    if words[0] in _LAUNCHERS:
        raise UsageError(
            f"the command begins with {words[0]}, expected train, run or bench: the manifest starts the ranks"
        )
    on_claim = [word for word in (*words, *options.env) if _IN_CLAIM.search(word)]
    if on_claim and not options.pvc:
        raise UsageError(
            f"{on_claim[0]!r} is a path on the claim, but --pvc is missing: add --pvc with the claim's name"
        )
    return words


def _assignment(flag: str, word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals:
        raise UsageError(f"{flag} {word!r}: expected NAME=VALUE")
    if name in _PLACE or name.startswith("PET_"):
        raise UsageError(f"{flag} {name}: the operator and the image's launcher set this variable: leave it out")
    return syntax.variable(flag, name), value


def _secret(word: str) -> tuple[str, tuple[str, str]]:
    name, value = _assignment("--secret-env", word)
    return name, syntax.secret_key("--secret-env", value)


def _output(command: Sequence[str]) -> str | None:
    """The value of --output_dir: empty if it is missing, None if a config file may have it."""
    for place, word in enumerate(command):
        name, equals, value = word.partition("=")
        if name == "--output_dir":
            return value if equals else "".join(command[place + 1 : place + 2])
    return None if command[1:2] and not command[1].startswith("-") else ""
