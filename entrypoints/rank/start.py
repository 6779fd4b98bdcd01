"""Turns this process into one rank: detect, plan, bind, export, and exec the worker with its preloads."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from entrypoints import contract
from entrypoints.cli.errors import UsageError
from entrypoints.machine.facts import MemoryPolicy
from entrypoints.placement import detect
from entrypoints.plan import command as plan
from entrypoints.plan.preload import split

# What we added to LD_PRELOAD: the worker verifies it and takes it out again for its own children.


def start(argv: list[str]) -> NoReturn:
    """Replace this process by the worker that runs `argv` ("train ..." or "run ...")."""
    made = plan.make(os.environ, named_backend(argv))
    if made.placement.local_rank == 0:
        for warning in made.warnings:
            print(f"warning: {warning}", file=sys.stderr, flush=True)
    try:
        os.sched_setaffinity(0, made.cores)
    except OSError as error:
        raise UsageError(
            f"the rank cannot be bound to its cores {list(made.cores)} ({error}): "
            "the container's CPU set has changed, or it forbids sched_setaffinity"
        ) from error
    if made.memory_policy != MemoryPolicy():
        _set_memory_policy(made.memory_policy)
    environ = dict(os.environ)
    detect.export(made.placement, environ)
    environ.update(made.environment)
    environ[contract.LAUNCHER] = made.placement.launcher
    environ[contract.PRELOADED] = ":".join(made.preload)
    os.execve(sys.executable, python("entrypoints.rank.worker", argv), environ)  # noqa: S606 - no shell is the point


def named_backend(argv: list[str]) -> str | None:
    """The process group that a rank's command names with --backend, None where it names none.

    Only read, to keep cores for its worker threads: the command's own parser judges it.
    """
    command, *rest = argv
    if command == "train":
        return _trainers_backend(rest)
    words = iter(rest)
    for word in words:
        name, given, value = word.partition("=")
        if name == "--backend":
            return value if given else next(words, None)
        if command == "run":  # what follows the script is the script's
            if word == "-m" or not word.startswith("-"):
                return None
            if word in ("--timeout", "--no-adapt"):
                next(words, None)
    return None


def _trainers_backend(argv: list[str]) -> str | None:
    """The value of --backend, or else of a flag from old guides. The command line overrides the file."""
    from entrypoints.adapt.flags import BACKENDS, name_of
    from entrypoints.cli import config_files

    file, words = config_files.split(argv)
    named = {name: config_files.value_of(file, name) for name in sorted(BACKENDS)} if file else {}
    for word, following in zip(words, [*words[1:], None]):
        if name_of(word) in BACKENDS:
            named[name_of(word)] = word.partition("=")[2] if "=" in word else following
    return named.pop("backend", None) or next(filter(None, named.values()), None)


def _set_memory_policy(policy: MemoryPolicy) -> None:
    from entrypoints.machine import numa  # ctypes takes its time to import

    try:
        numa.apply(policy)
    except OSError as error:
        nodes = ", ".join(map(str, policy.nodes))
        print(
            f"warning: memory policy {policy.mode} on NUMA node {nodes} is refused ({error}): pages come from the "
            "node of the thread that touches them first",
            file=sys.stderr,
            flush=True,
        )


def python(module: str, argv: list[str]) -> list[str]:
    """The command that runs `module` of this package in this interpreter, with the same view of sys.path."""
    # -P (Python 3.11) keeps the current folder's files from hiding the libraries'; hand it on where it was given.
    safe = ["-P"] if getattr(sys.flags, "safe_path", False) else []
    return [sys.executable, *safe, "-m", module, *argv]


def take_back(environ: os._Environ[str]) -> tuple[detect.DistributedEnvironment, list[str]]:
    """In the worker: the environment that `start` exported, and the preloads to verify.

    LD_PRELOAD goes back to what the user had: it was for this process, not for those that it starts.
    """
    ours = split(environ.pop(contract.PRELOADED, ""))
    rest = [path for path in split(environ.get("LD_PRELOAD", "")) if path not in ours]
    environ.pop("LD_PRELOAD", None)
    if rest:
        environ["LD_PRELOAD"] = ":".join(rest)
    place = detect.DistributedEnvironment(
        rank=int(environ["RANK"]),
        world_size=int(environ["WORLD_SIZE"]),
        local_rank=int(environ["LOCAL_RANK"]),
        local_world_size=int(environ["LOCAL_WORLD_SIZE"]),
        node_rank=int(environ["GROUP_RANK"]),
        master_addr=environ["MASTER_ADDR"],
        master_port=int(environ["MASTER_PORT"]),
        launcher=environ.pop(contract.LAUNCHER),
    )
    return place, ours
