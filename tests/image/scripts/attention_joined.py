"""Checks of attention of rows that are end to end, by bf16 instructions: against the formula of each row."""

from __future__ import annotations

import torch
from formula import P
from joined_rows import check_bits, check_rows

from cpu_train_stack.operators import attention

# As in attention_bf16.py.
ROUNDED = 2**-7


def values_and_gradients_are_those_of_the_formula() -> None:
    check_rows(torch.bfloat16, ROUNDED)


def bits_are_the_same_in_every_process() -> None:
    check_bits(torch.bfloat16)


def rows_drop_different_elements() -> None:
    units = torch.eye(64).repeat(2, 1)[None, None].bfloat16()
    kept_ = attention.joined(0 * units, units, units, torch.tensor([0, 64, 128]), False, 1.0, P) != 0
    assert not torch.equal(kept_[:, :, :64], kept_[:, :, 64:])
    assert abs(float(kept_.float().mean()) - (1 - P)) < 0.02


for check in (
    values_and_gradients_are_those_of_the_formula,
    bits_are_the_same_in_every_process,
    rows_drop_different_elements,
):
    torch.manual_seed(7)
    check()
    print(check.__name__)
