"""What collectives.py calls: special values, and tensors of inference mode."""

from __future__ import annotations

import time
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist

ReduceOp = dist.ReduceOp
# By the bytes of a number. torch 1.10 can view a tensor only as a type of the same size.
INTEGER_OF_SIZE = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def special(dtype: torch.dtype, rank: int) -> torch.Tensor:
    """Two NaNs with different bits, infinities, zeros of both signs and numbers, in every combination of two."""
    values = torch.tensor(
        [0.0, -0.0, 1.5, -1.5, float("inf"), -float("inf"), float("nan"), float("nan")], dtype=dtype
    )
    values[-1] = -values[-1].abs()  # another sign
    count = len(values)
    return values.repeat(count) if rank % 2 else values.repeat_interleave(count)


def extremes(check: Any, dtype: torch.dtype) -> None:
    """Minima and maxima propagate NaN, with the same bits on every rank."""
    parts = [special(dtype, rank) for rank in range(check.size)]
    for op, extreme in ((ReduceOp.MIN, torch.minimum), (ReduceOp.MAX, torch.maximum)):
        expected = reduce(extreme, parts)
        tensor = parts[check.rank].clone()
        dist.all_reduce(tensor, op, group=check.group)
        own = tensor.view(INTEGER_OF_SIZE[tensor.element_size()])
        bits = [torch.empty_like(own) for _ in parts]
        dist.all_gather(bits, own, group=check.group)
        check.all_equal(bits, [bits[0]] * check.size, "bits of all_reduce", dtype, op)
        root = parts[check.rank].clone()
        dist.reduce(root, check.place(0), op, group=check.group)
        part = torch.empty_like(expected)
        dist.reduce_scatter_tensor(part, parts[check.rank].repeat(check.size), op, group=check.group)
        for name, found in (("all_reduce", tensor), ("reduce", root), ("reduce_scatter_tensor", part)):
            if name != "reduce" or check.rank == 0:
                check.equal(found.isnan(), expected.isnan(), name, "NaN", dtype, op)
                check.equal(found.nan_to_num(7), expected.nan_to_num(7), name, "beside NaN", dtype, op)


def inference(check: Any) -> None:
    """Tensors of inference mode, in calls that end in another thread and outside of the mode."""
    with torch.inference_mode():
        whole, columns = torch.full((4, 3), check.rank + 1.0), torch.full((3, 4), check.rank + 1.0).t()
        part, counts = torch.empty(2), torch.full((3,), 6)
    works = [dist.all_reduce(columns, group=check.group, async_op=True)]
    with torch.inference_mode():
        works += [
            dist.all_reduce(whole, ReduceOp.AVG, group=check.group, async_op=True),
            dist.reduce_scatter_tensor(
                part, torch.ones(2 * check.size), ReduceOp.AVG, group=check.group, async_op=True
            ),
        ]
    works.append(dist.all_reduce(counts, ReduceOp.BOR, group=check.group, async_op=True))
    for work in works:
        while not work.is_completed():  # not wait(), which may end the call in this thread
            time.sleep(0.001)
        work.wait()
    total = check.size * (check.size + 1) / 2
    for tensor, value in ((columns, total), (whole, total / check.size), (part, 1), (counts, 6)):
        check.equal(tensor, torch.full_like(tensor, value), "inference mode")
    with torch.inference_mode():
        halves = torch.full((3,), 2.0, dtype=torch.bfloat16)
    dist.reduce(halves, check.place(0), group=check.group)
    if check.rank == 0:
        check.equal(halves, torch.full_like(halves, 2.0 * check.size), "reduce of inference mode")
