"""Binds a rank's compute threads once, and frees the main thread, which starts everything else. Needs torch."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

# Set by `rank` where the plan has chosen KMP_AFFINITY: a user's own choice is carried out as it is.
FREE_MAIN_THREAD = "CPU_TRAIN_STACK_FREE_MAIN_THREAD"
# torch divides from 32768 elements on.
_ELEMENTS = 1 << 18


def settle(environ: MutableMapping[str, str]) -> None:
    """Let Intel's OpenMP bind the threads now, then give the main thread the rank's CPUs back.

    It binds a thread once, the main thread in the first parallel region. Bound, that one would hand its one core
    on to each thread and program that it starts: tokenizers, compilers, the process group. Its own answer, `reset`
    in KMP_AFFINITY, moves the main thread to and fro in every region.
    """
    if environ.pop(FREE_MAIN_THREAD, None) is None:
        return
    import torch

    cpus = os.sched_getaffinity(0)
    torch.relu(torch.zeros(_ELEMENTS))
    os.sched_setaffinity(0, cpus)
