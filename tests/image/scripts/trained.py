"""Losses and gradients of models, and of steps of training, for the checks of models without padding."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch

from cpu_train_stack.operators import attention

STEPS = 20
# Two orders of summation differ by chance, some pairs more than others.
_MARGIN = 10
_LEAST = 1e-6

# The loss of a step, and all gradients as one vector.
Step = tuple[float, torch.Tensor]


def gradients(made: Any, inputs: dict[str, Any]) -> Step:
    made.zero_grad()
    loss = made(**inputs).loss
    loss.backward()
    return float(loss.detach()), torch.cat([
        (torch.zeros_like(weight) if weight.grad is None else weight.grad).flatten()
        for weight in made.parameters() if weight.requires_grad
    ])  # fmt: skip


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).norm() / other.norm())


def in_groups() -> AbstractContextManager[Any]:
    """Attention pads groups of rows inside the block, as without a kernel for rows end to end."""
    return mock.patch.object(attention, "joined", return_value=None)


def check_training(
    made: Any, batches: Sequence[dict[str, Any]], padded: Callable[[], AbstractContextManager[Any]]
) -> None:
    """Losses and gradients of all steps differ from those with padding as little as another order of rows does."""
    with padded():
        expected = _trained(made, batches)
        permuted = _trained(made, [_permuted(inputs) for inputs in batches])
    found = _trained(made, batches)
    effect, difference = (_largest_differences(steps, expected) for steps in (permuted, found))
    limits = [max(_MARGIN * each, _LEAST) for each in effect]
    assert all(map(float.__le__, difference, limits)), (difference, limits)
    first, last = expected[0][1], expected[-1][1]
    assert distance(last, first) > 0.1  # so that the steps are different ones


def _trained(made: Any, batches: Sequence[dict[str, Any]]) -> list[Step]:
    made = copy.deepcopy(made)
    optimizer = torch.optim.AdamW(made.parameters(), lr=1e-3)
    found = []
    for inputs in batches:
        found.append(gradients(made, inputs))
        optimizer.step()
    return found


def _permuted(inputs: dict[str, Any]) -> dict[str, Any]:
    order = torch.randperm(len(inputs["input_ids"]))
    return {name: value[order] for name, value in inputs.items()}


def _largest_differences(steps: Sequence[Step], expected: Sequence[Step]) -> tuple[float, float]:
    """Of the losses and of the gradients of all steps, relative to their size."""
    pairs = list(zip(steps, expected, strict=True))
    losses = (abs(one[0] - other[0]) / abs(other[0]) for one, other in pairs)
    return max(losses), max(distance(one[1], other[1]) for one, other in pairs)
