"""Measures attention with this project's kernels and with torch's, one after the other, over a grid of shapes.

    run benchmarks/attention.py [TOKENS [ALL]]

TOKENS: only cases with at most so many tokens in a row. ALL: about so many in all rows of a case (6144). Prints
one line of JSON: for each case the medians of both, and which of them a rank uses.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.ceiling import processor
from cpu_train_stack.machine import cpus
from cpu_train_stack.operators import attention
from cpu_train_stack.operators.dropout import draw_rule

DROPOUT = 0.1
# One round is not measured.
ROUNDS = 6
TORCHS = torch._C._nn.scaled_dot_product_attention


@dataclass(frozen=True)
class AttentionCase:
    """bfloat16 tensors [rows, heads, tokens, features]. `trains`: forward and backward."""

    rows: int
    heads: int
    tokens: int
    features: int
    causal: bool
    dropout: float
    trains: bool


def cases(tokens_of_all: int) -> Iterator[AttentionCase]:
    """So many tokens in each case, up to those of one row; half of them where attention is causal."""
    encoders = [(tokens, 12, 64) for tokens in (16, 32, 53, 96, 128, 192, 256, 384, 512, 1024, 2048)]
    for tokens, heads, features in (*encoders, (74, 12, 32)):
        for dropout, trains in ((DROPOUT, True), (0.0, True), (0.0, False)):
            yield AttentionCase(max(2, tokens_of_all // tokens), heads, tokens, features, False, dropout, trains)
    for (tokens, heads, features), trains in itertools.product(((512, 14, 64), (1024, 16, 128)), (True, False)):
        yield AttentionCase(max(2, tokens_of_all // 2 // tokens), heads, tokens, features, True, 0.0, trains)


def measure(case: AttentionCase, choice: attention.KernelChoice) -> dict[str, Any]:
    """The medians in seconds, and whether a rank uses this project's kernel."""
    shape = case.rows, case.tokens, case.heads, case.features
    given = query, key, value = tuple(
        torch.randn(shape).bfloat16().transpose(1, 2).requires_grad_(case.trains) for _ in range(3)
    )
    outer = torch.randn(shape).bfloat16().transpose(1, 2)
    kernel = choice.kernels[torch.bfloat16]
    rule = draw_rule(case.dropout) or attention.NO_DROPOUT

    def ours() -> Any:
        return kernel(query, key, value, None, case.causal, case.features**-0.5, rule)

    def torchs() -> Any:
        return TORCHS(*given, dropout_p=case.dropout, is_causal=case.causal)

    seconds: tuple[list[float], list[float]] = [], []
    with torch.set_grad_enabled(case.trains):
        for _ in range(ROUNDS):
            for compute, found in zip((ours, torchs), seconds):
                found.append(timed(compute, given, outer if case.trains else None))
        chosen = attention.replaced(lambda *_, **__: None, choice)(
            *given, dropout_p=case.dropout, is_causal=case.causal
        )
    medians = [statistics.median(found[1:]) for found in seconds]
    return {**asdict(case), "ours": medians[0], "torch": medians[1], "uses_ours": chosen is not None}


def timed(compute: Callable[[], Any], given: tuple[Any, ...], outer: Any) -> float:
    """The seconds of one call, with its gradients unless `outer` is None."""
    started = time.perf_counter()
    found = compute()
    if outer is not None:
        torch.autograd.grad(found, given, outer)
    return time.perf_counter() - started


def main(most: str = "inf", tokens_of_all: str = "6144") -> None:
    bf16 = cpus.bf16_of(os.environ)
    choice = attention.choose(bf16, widened=bf16 == cpus.EMULATED)
    if torch.bfloat16 not in choice.kernels:
        sys.exit("this CPU has no AVX-512: every rank uses torch's attention")
    torch.manual_seed(0)
    rows = [measure(case, choice) for case in cases(int(tokens_of_all)) if case.tokens <= float(most)]
    facts = {"torch": torch.__version__, "threads": torch.get_num_threads(), "bf16_by": bf16}
    print(json.dumps({**facts, **processor(Path("/proc/cpuinfo").read_text()), "rows": rows}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
