"""Runs as one of two ranks (`run --backend B -m entrypoints.doctor.exchange`): an allreduce with a known result.

Needs torch. Rank 0 reports.
"""

from __future__ import annotations

import statistics
import time

import torch
import torch.distributed as dist

from entrypoints.doctor import ranks
from entrypoints.machine import processes, shared_memory

SMALL = 1024  # elements, 4 KB
LARGE = 2 * 1024 * 1024  # 8 MB: a third of DDP's bucket
WARM_UPS = 3


def seconds_of(elements: int, repetitions: int) -> float:
    """The median of an allreduce. Raises ArithmeticError where a sum is not what it must be."""
    size = dist.get_world_size()
    taken = []
    for number in range(WARM_UPS + repetitions):
        tensor = torch.full((elements,), float(dist.get_rank() + 1 + number))
        began = time.perf_counter()
        dist.all_reduce(tensor)
        taken.append(time.perf_counter() - began)
        expected = size * (size + 1) / 2 + size * number
        if not torch.equal(tensor, torch.full((elements,), expected)):
            raise ArithmeticError(f"the sum of {elements} elements is wrong: expected {expected} everywhere")
    return statistics.median(taken[WARM_UPS:])


def main() -> None:
    small, large = seconds_of(SMALL, 30), seconds_of(LARGE, 5)
    if dist.get_rank() == 0:
        ranks.report(
            {
                "backend": dist.get_backend(),
                "ranks": dist.get_world_size(),
                "shared_memory": shared_memory.is_in_use(processes.mapped_files()),
                "small_seconds": small,
                "large_seconds": large,
            }
        )


if __name__ == "__main__":
    main()
