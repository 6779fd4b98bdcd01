"""How much memory a training job needs, and what helps if it is too much. Pure and torch-free."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cpu_train_stack.train.data.types import TrainerInputs

# Optimizers by the beginning of their names in --optim, and how many numbers they keep for each trained weight.
_STATES = (("adafactor", 0), ("sgd", 0), ("adagrad", 1), ("rmsprop", 1), ("lion", 1))
_ADAM = 2
_BUFFER = 250 << 20  # of DDP, if no weight is larger. Two are in use at a time
_TOKENS = 128  # of each row that is measured before training, at most
# Labels of a complete row. A task whose loss is a mean over tokens has a label for each token instead.
_OF_ROWS = ("labels", "start_positions", "end_positions")


@dataclass(frozen=True)
class Footprint:
    """The memory of one rank, in bytes.

    `loaded`: what the process holds before the first step: libraries, data and weights. `peak`: the most that it
    has held so far. `gradients`, `states`: of the trained weights, in DDP's buckets, and of the optimizer.
    `largest_gradient`: of one weight. `copies`: of weights, rounded for products. `per_token`: what the forward
    pass keeps for each token, `per_layer`: of this, in one layer. `tokens`: of the largest batch. `scores`: what
    the output layer needs, with the gradient of its weight. `buffers`: through which rank 0 sends its weights to
    the other ranks before the first step.
    """

    loaded: int
    peak: int
    gradients: int
    largest_gradient: int
    states: int
    copies: int
    per_token: float
    per_layer: float
    tokens: int
    scores: int
    buffers: int

    @property
    def activations(self) -> int:
        """At the start of the backward pass, with the gradients of the last layer."""
        return round((self.per_token + self.per_layer) * self.tokens) + self.scores + self.copies

    @property
    def needed(self) -> int:
        """The most that this rank holds during training.

        A word embedding that is also the output layer gets two gradients, which are added up at the end of the
        backward pass, before the sum is in its bucket. In bf16, jobs needed the memory of a third one.
        """
        step = max(self.activations, 3 * self.largest_gradient)
        return max(self.peak, self.loaded + self.buffers, self.loaded + self.states + self.gradients + step)


@dataclass(frozen=True)
class Flags:
    """The flags of a job that change its memory. `trains_all`: without an adapter."""

    rows: int
    recomputes: bool
    trains_all: bool
    ranks: int


def short_row(inputs: TrainerInputs, number: int) -> dict[str, Any]:
    """The last tokens of a row of the training data, where a chat has its labels.

    A row with one label keeps its first tokens instead, with the question, and its last token: Longformer looks
    for the separators around them.

    Before training, a long row would need more memory than in training: nothing is recomputed, and the allocator
    keeps what it got.
    """
    row = inputs.train[number]
    if inputs.shift is not None:
        return {name: values[-_TOKENS:] for name, values in row.items()}
    return {
        name: values if name in _OF_ROWS or len(values) <= _TOKENS else [*values[: _TOKENS - 1], values[-1]]
        for name, values in row.items()
    }


def states_per_weight(optimizer: str) -> int:
    """How many numbers the optimizer keeps for each trained weight. `optimizer`: as in --optim."""
    return next((count for name, count in _STATES if optimizer.startswith(name)), _ADAM)


def buffers(weights: Sequence[int], ranks: int) -> int:
    """The memory through which DDP sends `weights`, which have these sizes, from rank 0 to the other ranks."""
    return min(sum(weights), max(_BUFFER, *weights) + _BUFFER) if ranks > 1 else 0


def largest_batch(lengths: Sequence[int], rows: int, is_padded: bool) -> int:
    """The tokens of a batch of the longest rows."""
    longest = heapq.nlargest(rows, lengths)
    return longest[0] * len(longest) if is_padded and longest else sum(longest)


def line(found: Footprint) -> str:
    """What the job will need, for the user."""
    return (
        f"memory: about {_gb(found.needed)} GB per rank ({_gb(found.loaded)} loaded, "
        f"{_gb(found.gradients + found.states)} gradients and optimizer, {_gb(found.activations)} for the "
        f"{found.tokens:,} tokens of the largest batch)"
    )


def refusal(found: Footprint, available: int, ranks_here: int, flags: Flags) -> str | None:
    """Why the job cannot fit, and the flags that would help, the most effective first. None if it fits.

    `available`: the memory of this container or machine, which `ranks_here` share.
    """
    if found.needed * ranks_here <= available:
        return None
    weights, batch = found.gradients + found.states, found.activations
    helpful = [
        (batch, "--gradient_checkpointing", not flags.recomputes),
        (batch - batch // max(1, flags.rows), "a smaller --per_device_train_batch_size", flags.rows > 1),
        (batch // 2, "a smaller --max_seq_length", True),
        (weights, "--use_peft", flags.trains_all),
        (weights // 2, "--fsdp full_shard", flags.ranks > 1),
        (found.loaded, "fewer ranks per node", ranks_here > 1),
    ]
    names = [name for size, name, applies in sorted(helpful, key=lambda one: -one[0]) if applies and size]
    needed = f"{_gb(found.needed)} GB"
    if ranks_here > 1:
        needed += f" per rank, {_gb(found.needed * ranks_here)} GB for {ranks_here} ranks"
    use = ", or ".join(names[:4])
    return f"this job needs about {needed}, but {_gb(available)} GB are available here: use {use}"


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f}"
