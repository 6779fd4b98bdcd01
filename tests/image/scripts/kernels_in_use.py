"""Prints which of the image's kernels this process computes with, by what it would derive."""

from __future__ import annotations

import torch
from torch.nn import functional

torch.set_num_threads(1)  # a head for each
values = torch.ones(2, 8, 8, 16, requires_grad=True)
narrow = values.bfloat16()
attention = functional.scaled_dot_product_attention
for name, result in (
    ("dropout", functional.dropout(values, 0.5)),
    ("attention", attention(values, values, values, dropout_p=0.5)),
    ("attention-without-dropout", attention(narrow, narrow, narrow)),
):
    if type(result.grad_fn).__name__ in ("DropoutBackward", "AttentionBackward", "FusedAttentionBackward"):
        print(name)
