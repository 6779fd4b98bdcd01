"""Counts the instructions of attention in bf16 per head, forward and backward: torch's, AVX512-BF16, and AMX.

    run attention_instructions.py [TOKENS...]

Prints a line of JSON for each length, with dropout and without.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import Any

import torch
from ticks import count

from cpu_train_stack.operators import attention, attention_bf16
from cpu_train_stack.operators.dropout import draw_rule

TOKENS = (40, 74, 128, 191, 192, 384, 1024, 2048)
LONG = 1024
DROPOUT = 0.1
TORCHS = torch._C._nn.scaled_dot_product_attention


def counted(tokens: int, dropout: float) -> dict[str, Any]:
    heads, features = max(1, 384 // tokens), 32 if tokens < 96 else 64
    given = query, key, value = tuple(
        torch.randn(1, tokens, heads, features).bfloat16().transpose(1, 2).requires_grad_() for _ in range(3)
    )
    outer = torch.randn(1, tokens, heads, features).bfloat16().transpose(1, 2)
    rule = draw_rule(dropout) or attention.NO_DROPOUT
    ours = partial(attention_bf16.attention, query, key, value, None, False, features**-0.5, rule)
    kernels = {
        "torch": partial(TORCHS, query, key, value, dropout_p=dropout),
        "avx512": partial(ours, amx=False),
        "amx": partial(ours, amx=True),
    }
    found: dict[str, Any] = {"tokens": tokens, "features": features, "dropout": dropout}
    rounds = 3 if tokens < LONG else 2  # long rows take minutes; a first call also compiles
    for name, kernel in kernels.items():
        both = count(lambda kernel=kernel: torch.autograd.grad(kernel(), given, outer), rounds)
        found[name] = both // heads
    return found


assert attention_bf16.amx_permitted(), "Linux does not permit AMX"
torch.set_num_threads(1)
torch.manual_seed(0)
for tokens in [int(word) for word in sys.argv[1:]] or TOKENS:
    for dropout in (0.0, DROPOUT):
        print(json.dumps(counted(tokens, dropout)), flush=True)
