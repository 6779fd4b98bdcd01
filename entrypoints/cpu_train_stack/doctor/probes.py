"""The code of the doctor's own ranks. Needs torch.

    run -m cpu_train_stack.doctor.probes speed       # one rank: its mapped files, and the speed of matrix products
    run -m cpu_train_stack.doctor.probes allreduce   # one of two ranks: an allreduce with a known result

`ranks` starts these commands and judges the reports.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from typing import Callable

import torch
import torch.distributed as dist

from cpu_train_stack.doctor.ranks import report
from cpu_train_stack.machine import processes, shared_memory

# Large enough for the kernels of real layers, small enough for a slow core.
MATRIX_SIZE = 1024
PAIRS = 7
PAIRS_WARM_UP = 2
PAIRS_SECONDS = 6.0
SMALL = 1024  # elements, 4 KB
LARGE = 2 * 1024 * 1024  # 8 MB: a third of DDP's bucket
ALLREDUCE_WARM_UP = 3


def speed() -> None:
    single = torch.randn(MATRIX_SIZE, MATRIX_SIZE)
    half = single.to(torch.bfloat16)
    fp32, bf16 = products(lambda: torch.mm(single, single), lambda: torch.mm(half, half))
    operations = 2 * MATRIX_SIZE**3
    report(
        {
            "mapped": sorted(processes.mapped_files()),
            "cores": sorted(os.sched_getaffinity(0)),
            "threads": torch.get_num_threads(),
            "fp32_gflops": operations / fp32 / 1e9,
            "bf16_gflops": operations / bf16 / 1e9,
            "onednn": onednn_log(half),
        }
    )


def products(first: Callable[[], object], second: Callable[[], object]) -> tuple[float, float]:
    """The median seconds of both calls, timed in turn: a disturbance affects both. Takes about PAIRS_SECONDS."""
    end = time.perf_counter() + PAIRS_SECONDS
    taken: tuple[list[float], list[float]] = ([], [])
    for turn in range(PAIRS_WARM_UP + PAIRS):
        for call, seconds in zip((first, second), taken):
            began = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - began)
        if time.perf_counter() > end and turn:
            break
    kept = PAIRS_WARM_UP if len(taken[0]) > 2 * PAIRS_WARM_UP else 1
    return statistics.median(taken[0][kept:]), statistics.median(taken[1][kept:])


def onednn_log(matrix: torch.Tensor) -> str:
    """oneDNN's verbose log of a product of `matrix` with itself; may be empty. oneDNN writes to standard output.

    `matrix`: float tensor (n, n).
    """
    verbose = getattr(torch.backends.mkldnn, "verbose", None)
    if verbose is None or not torch.backends.mkldnn.is_available():
        return ""
    sys.stdout.flush()
    own = os.dup(1)
    log = os.memfd_create("onednn")
    os.dup2(log, 1)
    try:
        with verbose(torch.backends.mkldnn.VERBOSE_ON):
            torch.mm(matrix, matrix)
    finally:
        os.dup2(own, 1)
        os.close(own)
    os.lseek(log, 0, os.SEEK_SET)
    with os.fdopen(log, encoding="utf-8", errors="replace") as stream:
        return stream.read()


def allreduce() -> None:
    small, large = seconds_of(SMALL, 30), seconds_of(LARGE, 5)
    # ccl's sums within a node do not use oneCCL. Other collectives do, and large ones use all of its workers.
    for root in range(dist.get_world_size()):
        dist.broadcast(torch.zeros(LARGE), root)
    if dist.get_rank() == 0:
        report(
            {
                "backend": dist.get_backend(),
                "ranks": dist.get_world_size(),
                "shared_memory": shared_memory.is_in_use(processes.mapped_files()),
                "small_seconds": small,
                "large_seconds": large,
            }
        )


def seconds_of(elements: int, repetitions: int) -> float:
    """The median of an allreduce of fp32 elements. Raises ArithmeticError if a sum is wrong."""
    size = dist.get_world_size()
    taken = []
    for number in range(ALLREDUCE_WARM_UP + repetitions):
        tensor = torch.full((elements,), float(dist.get_rank() + 1 + number))
        began = time.perf_counter()
        dist.all_reduce(tensor)
        taken.append(time.perf_counter() - began)
        expected = size * (size + 1) / 2 + size * number
        if not torch.equal(tensor, torch.full((elements,), expected)):
            raise ArithmeticError(f"the sum of {elements} elements is wrong: expected {expected} everywhere")
    return statistics.median(taken[ALLREDUCE_WARM_UP:])


if __name__ == "__main__":
    {"speed": speed, "allreduce": allreduce}[sys.argv[1]]()
