"""One rank of random collectives: ccl gives gloo's results, and calls with different arguments fail on every rank.

All ranks draw the same cases from the seed. Values are small integers, so every sum and product is exact in every
type. Prints one line with the counts, and exits with 1 at the first difference.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from different_calls import REDUCTIONS, expect_error

TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.uint8)
SIZES = (0, 1, 2, 7, 64, 1000, 4097, 70_000)
# One case in this number has different arguments on one rank.
MISMATCH_EACH = 20

Tensors = list[torch.Tensor]


def values(case: int, rank: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """Integers from 0 to 3: a generator of its own, so that all ranks can make each rank's values."""
    generator = torch.Generator().manual_seed(case * 64 + rank)
    return torch.randint(0, 4, (size,), generator=generator).to(dtype)


class RandomCall:
    """One collective with drawn arguments: the results of this rank over a group, and those that are expected."""

    def __init__(self, number: int, draw: random.Random, ranks: int) -> None:
        self.number, self.ranks, self.rank = number, ranks, dist.get_rank()
        self.name = draw.choice(sorted(CALLS))
        self.dtype = draw.choice(TYPES)
        self.size = draw.choice(SIZES)
        self.op = draw.choice(REDUCTIONS)
        self.root = draw.randrange(ranks)
        self.is_async = draw.random() < 0.3
        self.is_strided = draw.random() < 0.2
        # What each rank sends to each rank.
        self.counts = [[draw.choice((0, 1, 5, 300)) for _ in range(ranks)] for _ in range(ranks)]

    def __str__(self) -> str:
        return f"case {self.number}: {self.name} {self.dtype} {self.size} {self.op} root {self.root}"

    def all_inputs(self, size: int) -> Tensors:
        return [values(self.number, rank, size, self.dtype) for rank in range(self.ranks)]

    def laid_out(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor`, or a copy that is not contiguous."""
        if not self.is_strided:
            return tensor.clone()
        wide = torch.zeros((tensor.numel(), 2), dtype=tensor.dtype)
        wide[:, 0] = tensor
        return wide[:, 0]


def reduction(case: RandomCall) -> Any:
    if case.op == "AVG" and not case.dtype.is_floating_point:
        case.op = "SUM"
    return getattr(dist.ReduceOp, case.op)


def all_reduce(case: RandomCall, group: Any, options: dict[str, Any]) -> tuple[Any, Tensors]:
    tensor = case.laid_out(case.all_inputs(case.size)[case.rank])
    return dist.all_reduce(tensor, reduction(case), group=group, **options), [tensor]


def reduce(case: RandomCall, group: Any, options: dict[str, Any]) -> tuple[Any, Tensors]:
    tensor = case.laid_out(case.all_inputs(case.size)[case.rank])
    work = dist.reduce(tensor, case.root, reduction(case), group=group, **options)
    return work, [tensor] if case.rank == case.root else []


def broadcast(case: RandomCall, group: Any, options: dict[str, Any]) -> tuple[Any, Tensors]:
    tensor = case.laid_out(case.all_inputs(case.size)[case.rank])
    return dist.broadcast(tensor, case.root, group=group, **options), [tensor]


def all_gather(case: RandomCall, group: Any, options: dict[str, Any]) -> tuple[Any, Tensors]:
    own = case.all_inputs(case.size)[case.rank]
    outputs = [case.laid_out(torch.zeros_like(own)) for _ in range(case.ranks)]
    if group is GLOO and not case.size:  # for which gloo ends the process with torch 1.10
        return None, outputs
    return dist.all_gather(outputs, case.laid_out(own), group=group, **options), outputs


def all_gather_into_tensor(case: RandomCall, group: Any, options: dict[str, Any]) -> tuple[Any, Tensors]:
    own = case.all_inputs(case.size)[case.rank]
    output = torch.zeros(case.size * case.ranks, dtype=case.dtype)
    return dist.all_gather_into_tensor(output, own, group=group, **options), [output]


def all_gather_uneven(case: RandomCall, group: Any, options: dict[str, Any]) -> tuple[Any, Tensors]:
    sizes = case.counts[0]
    outputs = [torch.zeros(size, dtype=case.dtype) for size in sizes]
    own = values(case.number, case.rank, sizes[case.rank], case.dtype)
    if group is GLOO:  # which needs equal sizes
        outputs = [values(case.number, rank, size, case.dtype) for rank, size in enumerate(sizes)]
        for rank, output in enumerate(outputs):
            dist.broadcast(output, rank, group=group)
        return None, outputs
    return dist.all_gather(outputs, own, group=group, **options), outputs


def gather(case: RandomCall, group: Any, options: dict[str, Any]) -> tuple[Any, Tensors]:
    own = case.laid_out(case.all_inputs(case.size)[case.rank])
    outputs = [torch.zeros_like(own) for _ in range(case.ranks)] if case.rank == case.root else None
    return dist.gather(own, outputs, case.root, group=group, **options), outputs or []


def scatter(case: RandomCall, group: Any, options: dict[str, Any]) -> tuple[Any, Tensors]:
    inputs = case.all_inputs(case.size) if case.rank == case.root else None
    output = torch.zeros(case.size, dtype=case.dtype)
    return dist.scatter(output, inputs, case.root, group=group, **options), [output]


def reduce_scatter_tensor(case: RandomCall, group: Any, options: dict[str, Any]) -> tuple[Any, Tensors]:
    whole = case.all_inputs(case.size * case.ranks)[case.rank]
    if group is GLOO:  # as an all_reduce, of which each rank keeps its part
        dist.all_reduce(whole, reduction(case), group=group)
        return None, [whole.chunk(case.ranks)[case.rank] if case.size else whole]
    output = torch.zeros(case.size, dtype=case.dtype)
    return dist.reduce_scatter_tensor(output, whole, reduction(case), group=group, **options), [output]


def reduce_scatter_uneven(case: RandomCall, group: Any, options: dict[str, Any]) -> tuple[Any, Tensors]:
    sizes = case.counts[0]
    inputs = list(case.all_inputs(sum(sizes))[case.rank].split(sizes))
    if group is GLOO:
        for part in inputs:
            dist.all_reduce(part, reduction(case), group=group)
        return None, [inputs[case.rank]]
    output = torch.zeros(sizes[case.rank], dtype=case.dtype)
    return dist.reduce_scatter(output, inputs, reduction(case), group=group, **options), [output]


def all_to_all_single(case: RandomCall, group: Any, options: dict[str, Any]) -> tuple[Any, Tensors]:
    sent, received = case.counts[case.rank], [counts[case.rank] for counts in case.counts]
    own = values(case.number, case.rank, sum(sent), case.dtype)
    output = torch.zeros(sum(received), dtype=case.dtype)
    return dist.all_to_all_single(output, own, received, sent, group=group, **options), [output]


def all_to_all(case: RandomCall, group: Any, options: dict[str, Any]) -> tuple[Any, Tensors]:
    if group is GLOO:  # which has no lists
        work, (output,) = all_to_all_single(case, group, options)
        return work, list(output.split([counts[case.rank] for counts in case.counts]))
    sent = case.counts[case.rank]
    inputs = list(values(case.number, case.rank, sum(sent), case.dtype).split(sent))
    outputs = [torch.zeros(counts[case.rank], dtype=case.dtype) for counts in case.counts]
    return dist.all_to_all(outputs, inputs, group=group, **options), outputs


def barrier(_case: RandomCall, group: Any, options: dict[str, Any]) -> tuple[Any, Tensors]:
    return dist.barrier(group, **options), []


def objects(case: RandomCall, group: Any, _options: dict[str, Any]) -> tuple[Any, Tensors]:
    found: list[Any] = [None] * case.ranks
    dist.all_gather_object(found, "x" * case.counts[0][case.rank], group=group)
    return None, [torch.tensor([len(text) for text in found])]


def messages(case: RandomCall, group: Any, _options: dict[str, Any]) -> tuple[Any, Tensors]:
    """Sizes and tags differ between ranks, and some send more than others."""
    received = torch.zeros(case.counts[(case.rank - 1) % case.ranks][0], dtype=case.dtype)
    sent = values(case.number, case.rank, case.counts[case.rank][0], case.dtype)
    work = dist.isend(sent, (case.rank + 1) % case.ranks, group=group, tag=case.number)
    dist.recv(received, (case.rank - 1) % case.ranks, group=group, tag=case.number)
    work.wait()
    return None, [received]


# Of torch 1.13 and later.
_NEWER = {"all_gather_into_tensor", "reduce_scatter_tensor"}
CALLS = {
    call.__name__: call
    for call in (
        *(all_reduce, reduce, broadcast, all_gather, all_gather_into_tensor, all_gather_uneven, gather, scatter),
        *(reduce_scatter_tensor, reduce_scatter_uneven, all_to_all_single, all_to_all, barrier, objects, messages),
    )
    if call.__name__ not in _NEWER or hasattr(dist, call.__name__)
}
GLOO: Any = None


def results(case: RandomCall, group: Any) -> Tensors:
    work, tensors = CALLS[case.name](case, group, {"async_op": True} if case.is_async else {})
    if work is not None:
        work.wait()
    return tensors


def reference(case: RandomCall) -> Tensors:
    """gloo's results. It has no averages, so the sum is divided, and gets contiguous tensors only.

    That of torch 1.10 has no bfloat16.
    """
    dtype, case.dtype = case.dtype, torch.float32 if case.dtype == torch.bfloat16 else case.dtype
    op, case.op = case.op, "SUM" if case.op == "AVG" and case.dtype.is_floating_point else case.op
    case.is_strided = False
    tensors = results(case, GLOO)
    if op == "AVG" and case.op != op and case.name.startswith(("all_reduce", "reduce")):
        tensors = [(tensor.double() / case.ranks).to(tensor.dtype) for tensor in tensors]
    case.op = op
    if dtype != case.dtype:
        tensors = [tensor.to(dtype) if tensor.dtype == case.dtype else tensor for tensor in tensors]
    case.dtype = dtype
    return tensors


def compare(case: RandomCall, group: Any) -> None:
    """Raises AssertionError if the results differ."""
    all_found, all_expected = results(case, group), reference(case)
    torch.testing.assert_close(len(all_found), len(all_expected))  # Python 3.9 has no zip(strict=True)
    for index, found in enumerate(all_found):
        expected = all_expected[index]
        torch.testing.assert_close(found, expected, rtol=1e-2 if case.op == "AVG" else 0, atol=0)


def main() -> None:
    global GLOO
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=600.0)
    options = parser.parse_args()
    ranks, counts = dist.get_world_size(), Counter[str]()
    draw = random.Random(options.seed)  # noqa: S311 - cases, not secrets
    GLOO = dist.new_group(backend="gloo")
    began = time.monotonic()
    for number in range(options.cases):
        if number % 50 == 0:  # all ranks end at the same case
            over = torch.tensor([float(time.monotonic() - began > options.seconds)])
            dist.broadcast(over, 0, group=GLOO)
            if over.item():
                break
        if number % MISMATCH_EACH == MISMATCH_EACH - 1:
            expect_error(number // MISMATCH_EACH, draw, ranks)
            counts["mismatched"] += 1
            dist.barrier(GLOO)
            continue
        case = RandomCall(options.seed * 1_000_000 + number, draw, ranks)
        try:
            compare(case, None)
        except (AssertionError, RuntimeError) as error:
            raise SystemExit(f"difference in {case}: {error}") from error
        counts["equal"] += 1
    if dist.get_rank() == 0:
        print(
            f"{ranks} ranks, CCL_ATL_SHM={os.environ.get('CCL_ATL_SHM')}, seed {options.seed}: "
            f"{counts['equal']} results equal gloo's, "
            f"{counts['mismatched']} mismatched calls failed on every rank, {time.monotonic() - began:.0f} s",
            flush=True,
        )
    dist.barrier(GLOO)


if __name__ == "__main__":
    main()
