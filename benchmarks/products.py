"""The matrix products in a training step, as torch dispatches them, and their floating-point operations."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import models
from benchmarks.jobs import Job


@dataclass(frozen=True)
class Product:
    """A call with `count` products of m x k and k x n matrices."""

    count: int
    m: int
    k: int
    n: int

    @property
    def flops(self) -> int:
        """One multiplication and one addition for each element of k."""
        return 2 * self.count * self.m * self.k * self.n


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[Product] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._overloadpacket.__name__
        if name in ("mm", "addmm", "bmm", "baddbmm"):
            left, right = args[1:3] if name in ("addmm", "baddbmm") else args[:2]
            count = left.shape[0] if left.dim() == 3 else 1
            self.found[Product(int(count), int(left.shape[-2]), int(left.shape[-1]), int(right.shape[-1]))] += 1
        return func(*args, **(kwargs or {}))


def of_step(job: Job, samples: int, length: int) -> Counter[Product]:
    """The products in forward and backward of one batch, and the number of calls of each. Nothing is computed.

    Attention is "eager": operations that a fused kernel repeats are counted once.
    """
    with torch.device("meta"):
        model = models.create(job, attention="eager").eval()
        batch = models.random_batch(job, model.config.vocab_size, samples, length)
        del batch["attention_mask"]  # transformers reads its values, and meta tensors have none
        recorder = _Recorder()
        with recorder:
            model(**batch).loss.backward()
    return recorder.found


def flops(products: Counter[Product]) -> int:
    return sum(product.flops * times for product, times in products.items())
