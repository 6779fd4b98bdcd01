"""Calls that differ between the ranks: every rank gets an error that names both calls."""

from __future__ import annotations

import random
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from cases import check

# AVG: since torch 1.11.
REDUCTIONS = [name for name in ("SUM", "PRODUCT", "MIN", "MAX", "AVG") if hasattr(dist.ReduceOp, name)]
# From the call to the error. Each case needs a group of its own, which fails.
LIMIT_SECONDS = 2.0


def mismatches(draw: random.Random, ranks: int) -> dict[str, list[Any]]:
    """By name: two functions that call a collective on a group. Ranks must not make these calls together."""
    size, other = draw.choice(((4, 10), (10, 4), (1000, 1001), (70_000, 300)))
    types = draw.sample((torch.float32, torch.int32, torch.float64, torch.bfloat16), 2)

    def reduces(size: int = size, dtype: torch.dtype = torch.float32, op: str = "SUM") -> Any:
        return lambda group: dist.all_reduce(torch.ones(size).to(dtype), getattr(dist.ReduceOp, op), group=group)

    def broadcasts(size: int = size, root: int = 0) -> Any:
        return lambda group: dist.broadcast(torch.ones(size), root, group=group)

    def gathers(size: int) -> Any:
        return lambda group: dist.all_gather([torch.ones(size)] * ranks, torch.ones(size), group=group)

    def exchanges(size: int) -> Any:
        return lambda group: dist.all_to_all([torch.ones(size)] * ranks, [torch.ones(size)] * ranks, group=group)

    def scatters(size: int) -> Any:
        parts = [torch.ones(size + rank) for rank in range(ranks)]
        output = torch.ones(size + dist.get_rank())
        return lambda group: dist.reduce_scatter(output, parts, group=group)

    return {
        "types": [reduces(dtype=dtype) for dtype in types],
        "types of a maximum": [reduces(dtype=dtype, op="MAX") for dtype in types],
        "operations": [reduces(op=op) for op in draw.sample(REDUCTIONS, 2)],
        "roots": [broadcasts(root=root) for root in draw.sample(range(ranks), 2)],
        "sizes of a broadcast": [broadcasts(size), broadcasts(other)],
        "sizes of all_gather": [gathers(size), gathers(other)],
        "sizes of all_to_all": [exchanges(size), exchanges(other)],
        "sizes of a sum of bool": [reduces(size, torch.bool), reduces(other, torch.bool)],
        "sizes of an uneven reduce_scatter": [scatters(size), scatters(other)],
        "collectives": [reduces(), lambda group: dist.barrier(group)],
    }


def expect_error(number: int, draw: random.Random, ranks: int) -> None:
    """Raises AssertionError unless this rank gets an error in time that names both calls."""
    pairs = mismatches(draw, ranks)
    kind = list(pairs)[number % len(pairs)]
    call = pairs[kind][dist.get_rank() == draw.randrange(ranks)]
    group = dist.new_group(backend="ccl", timeout=timedelta(seconds=60))
    backend = group._get_backend(torch.device("cpu"))
    dist.barrier(group)
    began = time.monotonic()
    try:
        call(group)
        while not backend.has_error() and time.monotonic() - began < LIMIT_SECONDS:
            time.sleep(0.01)
        dist.barrier(group)
        error = "none"
    except RuntimeError as raised:
        error = str(raised)
    seconds = time.monotonic() - began
    message = f"case {number}: different {kind}: {seconds:.1f} s: {error}"
    check("the ranks call different collectives: " in error and error.count(" called #") == 2, message)
    check(seconds < LIMIT_SECONDS, message)
    backend.abort()
