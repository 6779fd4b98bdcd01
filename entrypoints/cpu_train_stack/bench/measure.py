"""Times collectives of several backends in turn, in the same processes: a disturbance affects all backends."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Callable

import torch
import torch.distributed as dist

from cpu_train_stack.bench.cases import (
    Case,
    Repetitions,
    complete_elements,
    input_of,
    longest,
    quartiles,
    repetitions,
)
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.group.create import gather

_FIRST_CALLS = 3
# The second one: gloo's error for bf16 before torch 2.0.
_UNSUPPORTED = re.compile("support|Invalid scalar type")
# torch 2.13 and 1.13 renamed these two functions. An old name causes a warning if there is a newer one.
_ALL_GATHER = ("all_gather_single", "all_gather_into_tensor", "_all_gather_base")
_REDUCE_SCATTER = ("reduce_scatter_single", "reduce_scatter_tensor", "_reduce_scatter_base")
_all_gather: Callable[..., Any] = next(getattr(dist, name) for name in _ALL_GATHER if hasattr(dist, name))
_reduce_scatter: Callable[..., Any] = next(getattr(dist, name) for name in _REDUCE_SCATTER if hasattr(dist, name))


@dataclass(frozen=True)
class Call:
    """A collective on its own tensors. `run(group)` is timed.

    `input`, `output`: tensors (elements,) of the case's dtype; may be the same tensor. `expected`: the output for
    inputs full of `input_of`; a tensor of output's shape, or a scalar tensor.
    """

    case: Case
    run: Callable[[dist.ProcessGroup], None]
    input: torch.Tensor
    output: torch.Tensor
    expected: torch.Tensor

    @property
    def bytes(self) -> int:
        """The size of the complete tensor: the case's, made divisible by the number of ranks."""
        return max(int(tensor.numel() * tensor.element_size()) for tensor in (self.input, self.output))

    def check(self, group: dist.ProcessGroup) -> bool:
        """Run once and compare every element; afterwards, the input is zero. Raises UsageError for a wrong result.

        False if the backend does not support the call, which is the same on every rank.
        """
        self.input.fill_(input_of(dist.get_rank(), self.case.collective))
        try:
            self.run(group)
        except RuntimeError as error:
            if not _UNSUPPORTED.search(str(error)):
                raise
            return False
        is_correct = bool((self.output == self.expected).all())
        self.input.zero_()  # sums that grow from call to call would become infinite
        if not is_correct:
            raise UsageError(
                f"bench: {self.case} of {dist.get_backend(group)} gives a wrong result on rank {dist.get_rank()}: "
                "exclude the backend with --backend, and report the error"
            )
        return True


@dataclass(frozen=True)
class Timing:
    """Seconds per call of the slowest rank: median and quartiles of `blocks` blocks of `calls` calls."""

    low: float
    median: float
    high: float
    calls: int
    blocks: int


def make_call(case: Case, ranks: int) -> Call:
    """The call for each of `ranks` ranks. Allocates about twice the case's bytes at most."""
    dtype = getattr(torch, case.dtype)
    complete = torch.empty(complete_elements(case, ranks), dtype=dtype).fill_(0)
    part = torch.empty(complete.numel() // ranks, dtype=dtype).fill_(0)
    numbers = torch.tensor([input_of(rank, case.collective) for rank in range(ranks)], dtype=dtype)
    if case.collective == "all_reduce":
        return Call(case, lambda group: dist.all_reduce(complete, group=group), complete, complete, numbers.sum())
    if case.collective == "broadcast":
        return Call(case, lambda group: dist.broadcast(complete, 0, group=group), complete, complete, numbers[0])
    if case.collective == "all_gather":
        gathered = numbers.repeat_interleave(part.numel())
        return Call(case, lambda group: _all_gather(complete, part, group=group), part, complete, gathered)
    return Call(case, lambda group: _reduce_scatter(part, complete, group=group), complete, part, numbers.sum())


def measure(call: Call, groups: Mapping[str, dist.ProcessGroup], row_seconds: float) -> dict[str, Timing]:
    """The timing of each backend that supports the call. A collective: every rank gets the same numbers."""
    groups = {backend: group for backend, group in groups.items() if call.check(group)}
    first = {}
    for backend, group in groups.items():
        first[backend] = [_block(call, group, 1) for _ in range(_FIRST_CALLS)]
    plan = repetitions({backend: median(longest(gather(times))) for backend, times in first.items()}, row_seconds)
    times = _alternate(call, groups, plan)
    result = {}
    for backend in groups:
        low, middle, high = quartiles(longest(gather(times[backend])))
        result[backend] = Timing(low, middle, high, plan.calls[backend], plan.blocks)
    return result


def slowest(seconds: float) -> float:
    """The longest time of all ranks. A collective."""
    return float(max(gather(seconds)))


def _alternate(call: Call, groups: Mapping[str, dist.ProcessGroup], plan: Repetitions) -> dict[str, list[float]]:
    """A B, B A, A B, ...: no backend is always first."""
    times: dict[str, list[float]] = {backend: [] for backend in groups}
    order = list(groups.items())
    for _ in range(plan.blocks):
        for backend, group in order:
            times[backend].append(_block(call, group, plan.calls[backend]))
        order.reverse()
    return times


def _block(call: Call, group: dist.ProcessGroup, calls: int) -> float:
    """Seconds per call in a block of `calls` calls."""
    dist.barrier(group=group)
    started = time.perf_counter()
    for _ in range(calls):
        call.run(group)
    return (time.perf_counter() - started) / calls
