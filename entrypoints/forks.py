"""Gives forked children of a rank all of its CPUs. Torch-free."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

# Set by `rank` where the plan has placed the compute threads: a user's own choice is carried out as it is.
WIDEN = "CPU_TRAIN_STACK_WIDEN_FORKS"


def widen(environ: MutableMapping[str, str]) -> None:
    """From now on a forked child may run on every CPU that this process has at this moment.

    OpenMP places the main thread together with the compute threads, and a child inherits that: data loading
    processes would keep to the compute threads' hardware threads and leave the others idle.
    """
    if environ.pop(WIDEN, None) is None:
        return
    cpus = os.sched_getaffinity(0)

    def give_back() -> None:
        try:
            os.sched_setaffinity(0, cpus)
        except OSError:  # the CPU set has changed meanwhile: the child keeps what it has
            return

    os.register_at_fork(after_in_child=give_back)
