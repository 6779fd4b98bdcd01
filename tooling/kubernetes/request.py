"""What a manifest is made of: the options as typed, and the request that they come to once they are checked."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tooling import compose, image_lock
from tooling.errors import UsageError
from tooling.kubernetes import syntax

# Where the claim is mounted. Its folders are made by what writes to them: a job's user may, a subPath is root's.
CLAIM = "/pvc"
HF_HOME = f"{CLAIM}/huggingface"
DEFAULT_NAME = "train"
# Ranks of a node whose number its NUMA nodes decide: for the size of /dev/shm, which hardly depends on it.
MANY_RANKS = 8
_MEBIBYTE = 1 << 20
_SHM_STEP = 64 * _MEBIBYTE
_LAUNCHERS = ("launch", "mpi-launch", "mpirun", "torchrun")
# Set by the operators and by the image's launchers.
_PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# What follows a job's name in its longest pod name, by kind; {last} is the last pod's number.
POD_SUFFIXES = {"pytorchjob": "-worker-{last}", "trainjob": "-node-0-{last}", "mpijob": "-worker-{last}"}


@dataclass(frozen=True)
class Options:
    """The options of `./inv manifest KIND`, as typed; `command` is what stands behind --."""

    command: tuple[str, ...]
    name: str = DEFAULT_NAME
    namespace: str = ""
    image: str = ""
    image_lock: str = ""
    nodes: int = 2
    cpus: int = 0
    memory: str = ""
    ranks_per_node: str = ""
    pvc: str = ""
    node_selector: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    secret_env: tuple[str, ...] = ()
    pull_secret: str = ""
    max_restarts: int = 3
    node_cpus: int = 0
    node_memory: str = ""


@dataclass(frozen=True)
class Request:
    """A job: `nodes` pods of `cpus` CPUs and `memory_bytes` each. Everything in it is valid.

    `ranks_per_node` None: one for each NUMA node that a pod finds, within its quota. `secret_env` maps a variable
    to a secret and the key in it. `node_cpus`: hardware threads of a node, 0 where they are not known.
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
        """The limit of a pod, /dev/shm and all."""
        return syntax.memory("--memory", self.memory)

    @property
    def shm_bytes(self) -> int:
        """The size of a pod's /dev/shm: it goes by the CPUs of the node, whatever the pod's share of them.

        Where they are not known: twice the pod's, as on a node whose cores have two hardware threads each.
        """
        needed = compose.shm_bytes(self.ranks_per_node or MANY_RANKS, self.node_cpus or 2 * self.cpus)
        return -(-needed // _SHM_STEP) * _SHM_STEP

    @property
    def job(self) -> str:
        """The same for every start of this job's pods, another for a job with another command."""
        text = "\0".join(self.command)
        return f"{self.namespace}/{self.name}/{hashlib.sha256(text.encode()).hexdigest()[:12]}".lstrip("/")


def parse(kind: str, options: Options) -> Request:
    """The request. Raises UsageError, one line, for the first option that cannot be."""
    for flag, value in (("--nodes", options.nodes), ("--cpus", options.cpus)):
        if value < 1:
            raise UsageError(f"{flag} is {value}, expected 1 or more")
    for flag, value in (("--max-restarts", options.max_restarts), ("--node-cpus", options.node_cpus)):
        if value < 0:
            raise UsageError(f"{flag} is {value}, expected 0 or more")
    for flag, text, what in (("--memory", options.memory, "128Gi"), ("--pvc", options.pvc, "the claim's name")):
        if not text:
            raise UsageError(f"{flag} is missing, expected {what}")
    request = Request(
        kind=kind,
        name=syntax.job_name(options.name, POD_SUFFIXES[kind].format(last=options.nodes - 1)),
        namespace=syntax.namespace(options.namespace) if options.namespace else "",
        image=_image(options),
        nodes=options.nodes,
        cpus=options.cpus,
        memory=options.memory,
        ranks_per_node=_ranks(kind, options.ranks_per_node),
        pvc=syntax.resource_name("--pvc", options.pvc),
        command=_command(options.command),
        node_selector=dict(syntax.label("--node-selector", word) for word in options.node_selector),
        env=dict(_assignment("--env", word) for word in options.env),
        secret_env={
            name: syntax.secret_key("--secret-env", value)
            for name, value in (_assignment("--secret-env", word) for word in options.secret_env)
        },
        pull_secret=syntax.resource_name("--pull-secret", options.pull_secret) if options.pull_secret else "",
        max_restarts=options.max_restarts,
        node_cpus=options.node_cpus,
        node_memory=options.node_memory,
    )
    _check_sizes(request)
    return request


def warnings(request: Request) -> list[str]:
    """What the cluster would accept and the user would regret."""
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
            "the ranks need too: more --memory, or the node's hardware threads as --node-cpus if they are fewer"
        )
    output = _output(request.command)
    if request.command[0] == "train" and output is not None and not output.startswith(f"{CLAIM}/"):
        found.append(
            f"--output_dir is {output!r}, expected a folder below {CLAIM}, where the claim is: "
            "what is written elsewhere goes with the pods"
        )
    return found


def _check_sizes(request: Request) -> None:
    if request.shm_bytes >= request.memory_bytes:
        raise UsageError(
            f"--memory is {request.memory}, but shared memory may take {request.shm_bytes // _MEBIBYTE} MiB of it "
            "(16 MiB for each hardware thread of the node): give more, or --node-cpus if they are fewer"
        )
    if request.node_memory:
        syntax.memory("--node-memory", request.node_memory)


def _image(options: Options) -> str:
    if bool(options.image) == bool(options.image_lock):
        raise UsageError("which image? give --image-lock image.lock.json, or --image HOST/NAME@sha256:…")
    return image_lock.read(Path(options.image_lock)).image if options.image_lock else syntax.image(options.image)


def _ranks(kind: str, text: str) -> int | None:
    if kind == "mpijob" and text == "auto":
        raise UsageError("--ranks-per-node auto: a hostfile has a number of slots, expected one, 2 for example")
    if text in ("", "auto"):
        return 1 if kind == "mpijob" else None
    if not text.isdigit() or int(text) < 1:
        raise UsageError(f"--ranks-per-node is {text!r}, expected 1 or more, or auto: one for each NUMA node")
    return int(text)


def _command(words: Sequence[str]) -> tuple[str, ...]:
    if not words:
        raise UsageError("no command: write it after --, for example -- train --output_dir /pvc/output/first …")
    if words[0] in _LAUNCHERS:
        raise UsageError(
            f"the command begins with {words[0]}, expected train, run or bench: the manifest starts the ranks"
        )
    return tuple(words)


def _assignment(flag: str, word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals:
        raise UsageError(f"{flag} {word!r}: expected NAME=VALUE")
    if name in _PLACE or name.startswith("PET_"):
        raise UsageError(f"{flag} {name}: the operator and the image's launcher set it, leave it out")
    return syntax.variable(flag, name), value


def _output(command: Sequence[str]) -> str | None:
    """The value of --output_dir, empty where there is none, None where a config file may have it."""
    for place, word in enumerate(command):
        name, equals, value = word.partition("=")
        if name == "--output_dir":
            return value if equals else "".join(command[place + 1 : place + 2])
    return None if command[1:2] and not command[1].startswith("-") else ""
