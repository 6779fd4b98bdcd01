"""The collectives as they are timed, each on tensors of its own, checked once before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

import torch
import torch.distributed as dist

from entrypoints.bench.cases import Case, whole_elements
from entrypoints.cli.errors import UsageError

# torch 2.13 gave these two a new name and warns of the old one; earlier ones know only that.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True)
class Call:
    """`run(group)` is what is timed. `input` and `output` may be the same tensor; `expected` has output's shape or
    one that broadcasts to it, and holds after a call on inputs that are full of rank + 1."""

    case: Case
    run: Callable[[dist.ProcessGroup], None]
    input: torch.Tensor
    output: torch.Tensor
    expected: torch.Tensor

    @property
    def bytes(self) -> int:
        """Of the whole tensor: the case's own, made divisible by the ranks."""
        return int(max(self.input.nbytes, self.output.nbytes))

    def check(self, group: dist.ProcessGroup) -> bool:
        """Run once and compare every element; afterwards the input is zero. Raises UsageError.

        False where the backend says that it does not support the call, which it does on every rank alike.
        """
        self.input.fill_(dist.get_rank() + 1)
        try:
            self.run(group)
        except RuntimeError as error:
            if "support" not in str(error):
                raise
            return False
        right = bool((self.output == self.expected).all())
        self.input.zero_()  # sums that grow from call to call would end as infinity
        if not right:
            raise UsageError(
                f"bench: {self.case} of {dist.get_backend(group)} gives a wrong result on rank {dist.get_rank()}: "
                "its time says nothing, so leave the backend out with --backend, and report it"
            )
        return True


def make(case: Case, ranks: int) -> Call:
    """The call for a rank of `ranks`; allocates about twice the case's bytes at most."""
    dtype = getattr(torch, case.dtype)
    whole = torch.empty(whole_elements(case, ranks), dtype=dtype).fill_(0)
    part = torch.empty(whole.numel() // ranks, dtype=dtype).fill_(0)
    numbers = torch.arange(1, ranks + 1, dtype=dtype)
    if case.collective == "all_reduce":
        return Call(case, lambda group: dist.all_reduce(whole, group=group), whole, whole, numbers.sum())
    if case.collective == "broadcast":
        return Call(case, lambda group: dist.broadcast(whole, 0, group=group), whole, whole, numbers[0])
    if case.collective == "all_gather":
        ranks_of_elements = numbers.repeat_interleave(part.numel())
        return Call(case, lambda group: _all_gather(whole, part, group=group), part, whole, ranks_of_elements)
    return Call(case, lambda group: _reduce_scatter(part, whole, group=group), whole, part, numbers.sum())
