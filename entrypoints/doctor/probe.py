"""Runs as a single rank (`run -m entrypoints.doctor.probe`): report its mapped files and the speed of products.

Needs torch.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from typing import Callable

import torch

from entrypoints.doctor import ranks
from entrypoints.machine import processes

# Large enough for the kernels of real layers, small enough for a slow core.
SIZE = 1024
WARM_UPS = 2
PAIRS = 7
SECONDS = 6.0


def products(
    first: Callable[[], object], second: Callable[[], object], clock: Callable[[], float] = time.perf_counter
) -> tuple[float, float]:
    """The median seconds of both calls, timed in turn so that a disturbance affects both. Takes about SECONDS."""
    end = clock() + SECONDS
    taken: tuple[list[float], list[float]] = ([], [])
    for turn in range(WARM_UPS + PAIRS):
        for call, seconds in zip((first, second), taken):
            began = clock()
            call()
            seconds.append(clock() - began)
        if clock() > end and turn:
            break
    kept = WARM_UPS if len(taken[0]) > 2 * WARM_UPS else 1
    return statistics.median(taken[0][kept:]), statistics.median(taken[1][kept:])


def onednn_log(matrix: torch.Tensor) -> str:
    """oneDNN's verbose log of a product of `matrix`, from the process's standard output; may be empty."""
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


def main() -> None:
    single = torch.randn(SIZE, SIZE)
    half = single.to(torch.bfloat16)
    fp32, bf16 = products(lambda: torch.mm(single, single), lambda: torch.mm(half, half))
    operations = 2 * SIZE**3
    ranks.report(
        {
            "mapped": sorted(processes.mapped_files()),
            "cores": sorted(os.sched_getaffinity(0)),
            "threads": torch.get_num_threads(),
            "fp32_gflops": operations / fp32 / 1e9,
            "bf16_gflops": operations / bf16 / 1e9,
            "onednn": onednn_log(half),
        }
    )


if __name__ == "__main__":
    main()
