"""Turn this process into one rank: detect, plan, bind, export, and exec the worker with its preloads.

`cpu_train_stack.__main__` calls `start`, which execs `cpu_train_stack.rank.worker`: preloads and the variables of
OpenMP take effect only in a new process. The worker begins with `read_exported`.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from typing import NoReturn

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.interpreter import python_command
from cpu_train_stack.cli.options import default_backend
from cpu_train_stack.cli.say import say
from cpu_train_stack.doctor import container
from cpu_train_stack.machine import numa, topology
from cpu_train_stack.machine.numa import MemoryPolicy
from cpu_train_stack.placement import detect
from cpu_train_stack.plan import planner, preload
from cpu_train_stack.records import origin


def start(argv: list[str]) -> NoReturn:
    """Replace this process by the worker that runs `argv` ("train ...", "run ..." or "bench ...")."""
    place, host = detect.detect(os.environ), topology.read()
    plan = planner.plan(place, host, os.environ, preload.find(os.environ), backend_of(argv))
    faults = container.faults(host, place.local_world_size) if place.local_rank == 0 else []
    if plan.placement.local_rank == 0:
        for warning in plan.warnings:
            say(f"warning: {warning}")
    try:
        os.sched_setaffinity(0, plan.cores)
    except OSError as error:
        raise UsageError(
            f"cannot bind the rank to its cores {list(plan.cores)} ({error}), expected them in the container's "
            "CPU set: check whether the CPU set has changed, or the container forbids sched_setaffinity"
        ) from error
    if plan.memory_policy != MemoryPolicy():
        _set_memory_policy(plan.memory_policy)
    environ = dict(os.environ)
    environ.update(plan.environment)
    environ[contract.LAUNCHER] = plan.placement.launcher
    environ[contract.PRELOADED] = ":".join(plan.preload)
    environ[contract.ORIGIN] = origin.export(argv, plan, host, [asdict(fault) for fault in faults])
    os.execve(sys.executable, python_command("cpu_train_stack.rank.worker", argv), environ)


def backend_of(argv: list[str]) -> str:
    """The process group's backend, from a rank's command line; the default for an invalid command line.

    The plan reserves cores for the backend's worker threads. The worker reports an invalid command line.
    """
    command, *rest = argv
    try:
        if command == "run":
            from cpu_train_stack.rank import script

            return script.parse(rest).backend
        if command == "bench":
            from cpu_train_stack.bench import arguments

            return arguments.parse(rest).backends[0]
    except UsageError:
        return default_backend()
    if command == "generate":
        return "gloo"
    return _trainers_backend(rest) or default_backend()


def _trainers_backend(argv: list[str]) -> str | None:
    """The value of --backend, or of an old guide's flag. The command line overrides the configuration file.

    `train`'s own parser needs transformers, whose import takes seconds.
    """
    from cpu_train_stack.cli import config_files
    from cpu_train_stack.compat.flags import BACKENDS
    from cpu_train_stack.compat.rewriting import name_of

    file, words = config_files.split(argv)
    named = {name: config_files.value_of(file, name) for name in sorted(BACKENDS)} if file else {}
    for word, following in zip(words, [*words[1:], None]):
        if name_of(word) in BACKENDS:
            named[name_of(word)] = word.partition("=")[2] if "=" in word else following
    return named.pop("backend", None) or next(filter(None, named.values()), None)


def _set_memory_policy(policy: MemoryPolicy) -> None:
    try:
        numa.apply(policy)
    except OSError as error:
        nodes = ", ".join(map(str, policy.nodes))
        say(
            f"warning: memory policy {policy.mode} on NUMA node {nodes} is refused ({error}): pages come from the "
            "node of the thread that first writes to them"
        )


def read_exported(environ: os._Environ[str]) -> tuple[detect.DistributedEnvironment, list[str]]:
    """In the worker: the placement that `start` exported, and the preloads to verify.

    `records.origin` keeps what `start` exported for the records. LD_PRELOAD is reset to the user's own value: the
    plan's preloads are for this process, not for its children.
    """
    origin.keep(environ.pop(contract.ORIGIN, ""))
    ours = preload.split(environ.pop(contract.PRELOADED, ""))
    rest = [path for path in preload.split(environ.get("LD_PRELOAD", "")) if path not in ours]
    environ.pop("LD_PRELOAD", None)
    if rest:
        environ["LD_PRELOAD"] = ":".join(rest)
    return detect.from_variables(environ, environ.pop(contract.LAUNCHER)), ours
