"""Ranks of a torchrun that starts a script itself, as Kubeflow's SDK does: `torchrun train.py`.

A .pth file of the image calls `start` at the start of such a Python process, before any other module. The process
then becomes `entrypoint run SCRIPT`: the same rank, with the plan, the preloads and the process group that it has
under `launch`. Torch-free.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from cpu_train_stack import contract
from cpu_train_stack.cli.interpreter import python_command
from cpu_train_stack.cli.numbers import whole_number
from cpu_train_stack.cli.say import say

PLAIN = "plain"
# torchrun's own number of ranks per node, which Kubeflow's operators set to the number of CPUs.
_RANKS = "PET_NPROC_PER_NODE"
# The mark of a rank. The agent that starts the ranks does not have it.
_MARK = "TORCHELASTIC_RUN_ID"
# accelerate launch sets it for every program that it starts.
_ACCELERATE = "ACCELERATE_MIXED_PRECISION"
# How torchrun starts Python. Other options of Python would be lost.
_UNBUFFERED = "-u"


@functools.cache  # site reads the .pth files of lib and of its link lib64
def start() -> None:
    """In a rank of a foreign torchrun, mpirun or srun: replace this process. In an agent: set its ranks."""
    words = _words("self/cmdline")
    arguments = adopted(words, os.environ, _words(f"{os.getppid()}/environ"))
    if not arguments:
        from cpu_train_stack.rank import alone

        launcher, above = alone.launcher_of(os.environ), alone.names_above()
        arguments = alone.adopted(words, os.environ, above)
        if not arguments and (warning := alone.warning(words, os.environ, above)):
            say(warning)
        elif not arguments:
            alone.watch(words, os.environ, above)
        program = " ".join(arguments[: 2 if arguments[:1] == ["-m"] else 1])
        if arguments and launcher is not None and os.environ[launcher.rank] == "0":
            say(
                f"note: {launcher.name} started {program} as {os.environ[launcher.world_size]} ranks: each "
                f"becomes `run {program}`, unless {contract.TORCHRUN} is {PLAIN}"
            )
        if launcher is None and _ACCELERATE in os.environ:
            from cpu_train_stack.rank import accelerated

            command, line = accelerated.ranks(words, os.environ, _words(f"{os.getppid()}/cmdline"))
            if line:
                say(line)
            if command:
                os.execv(sys.executable, python_command("cpu_train_stack", command))
    if arguments:
        os.execv(sys.executable, python_command("cpu_train_stack", ["run", *arguments]))
    if os.environ.get(contract.RANKS_PER_NODE) and _RANKS in os.environ:
        os.environ[_RANKS] = str(_ranks(os.environ[contract.RANKS_PER_NODE]))


def _words(file: str) -> list[str]:
    """The words of a file of /proc; empty for a process outside the container, or of another user."""
    try:
        return os.fsdecode((Path("/proc") / file).read_bytes()).split("\0")[:-1]
    except OSError:
        return []


def adopted(words: Sequence[str], environ: Mapping[str, str], parents: Sequence[str]) -> list[str]:
    """The arguments of `run`, or none if the process keeps its command.

    `words`: the command line of this Python process. `parents`: the environment of its parent, NAME=VALUE each. A
    process that a rank has started inherits the rank's variables, as its parent did: it is not a rank itself.
    """
    if environ.get(contract.TORCHRUN) == PLAIN or _MARK not in environ or "RANK" not in environ:
        return []
    if not parents or any(entry.startswith(f"{_MARK}=") for entry in parents):
        return []
    arguments = list(words[1:])
    while arguments and arguments[0] == _UNBUFFERED:
        del arguments[0]
    if arguments[:1] == ["-m"]:
        return arguments if len(arguments) > 1 and arguments[1].partition(".")[0] != "cpu_train_stack" else []
    return arguments if arguments and not arguments[0].startswith("-") else []


def _ranks(wanted: str) -> int:
    if number := whole_number(wanted):
        return number
    if wanted != "auto":
        say(
            f"error: {contract.RANKS_PER_NODE} is {wanted!r}, expected 1 or more, or auto: one rank for each NUMA "
            "node"
        )
        os._exit(contract.USAGE_EXIT_CODE)  # site, which runs .pth files, would ignore an exception
    from cpu_train_stack.machine import topology
    from cpu_train_stack.plan.planner import ranks_for

    return ranks_for(topology.read())
