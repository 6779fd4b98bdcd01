"""Tokenized rows as the input of Trainer, one by one or packed, and their padding to batches."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from transformers import DataCollatorWithPadding

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.data.token_rows import TokenRows
from cpu_train_stack.train.flags.arguments import Task, TaskArguments
from cpu_train_stack.train.tasks.tokens import IGNORED

# Widths in steps of eight: oneDNN generates kernels for fewer shapes.
_STEP = 8


def sequence_length(arguments: TaskArguments, task: Task, limit: int | None) -> int:
    """The longest input in tokens. Raises UsageError if --max_seq_length is more than the model's `limit`."""
    asked, default = arguments.max_seq_length, task.length
    if asked is None:
        return default if limit is None else min(default, limit)
    check_positions("max_seq_length", asked, limit)
    return asked


def check_positions(flag: str, tokens: int | None, limit: int | None) -> None:
    """Raise UsageError if the value of a flag is more than the model's `limit`."""
    if limit is not None and tokens is not None and tokens > limit:
        raise UsageError(f"--{flag} {tokens} is more than the {limit} positions of the model: use {limit} or less")


def tokenizer_padder(tokenizer: Any, max_length: int, to_max_length: bool) -> Any:
    """A collator that pads with the tokenizer, which knows the padding side and the names of the model's
    inputs."""
    if to_max_length:
        return DataCollatorWithPadding(tokenizer, padding="max_length", max_length=max_length)
    return DataCollatorWithPadding(tokenizer, pad_to_multiple_of=_STEP if max_length % _STEP == 0 else None)


# The tokens of a row, and the label of each token: IGNORED if the model does not learn it.
Example = tuple[Sequence[int], Sequence[int]]


class TokenizedRows(torch.utils.data.Dataset):
    """The rows of Trainer. A subclass makes the model's input of a row of `_rows`."""

    _rows: TokenRows

    def __len__(self) -> int:
        return len(self._rows)

    def lengths(self) -> Sequence[int]:
        return self._rows.lengths


class Sequences(torch.utils.data.Dataset):
    """One example per row, or with `bins` several, with positions that restart at each example.

    A row: input_ids, labels and (packed) position_ids, integer arrays [tokens].
    """

    def __init__(self, examples: TokenRows, bins: Sequence[Sequence[int]] | None = None) -> None:
        """`examples`: the tokens and their labels."""
        self._examples = examples
        self._bins = bins

    def __len__(self) -> int:
        return len(self._examples) if self._bins is None else len(self._bins)

    def lengths(self) -> Sequence[int]:
        lengths = self._examples.lengths
        return (
            lengths
            if self._bins is None
            else array("i", (sum(lengths[row] for row in rows) for rows in self._bins))
        )

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self._bins is None:
            ids, labels = self._examples[index]
            return {"input_ids": ids, "labels": labels}
        examples = [self._examples[row] for row in self._bins[index]]
        ids, labels = numpy.concatenate(examples, axis=1)
        positions = numpy.concatenate([numpy.arange(example.shape[1]) for example in examples])
        return {"input_ids": ids, "labels": labels, "position_ids": positions}


@dataclass(frozen=True)
class Padder:
    """Pads a batch on the right to its longest row, at most to `length`. Tensors: int64 [batch, width].

    A packed batch has no attention mask: models find the boundaries in the positions. Zeros at the end of the
    positions are padding.
    """

    pad: int
    length: int
    to_length: bool = False

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        longest = max(len(row["input_ids"]) for row in rows)
        width = self.length if self.to_length else min(self.length, -(-longest // _STEP) * _STEP)
        fill = {"input_ids": self.pad, "labels": IGNORED, "position_ids": 0}
        batch = {}
        for name in rows[0]:
            values = torch.full((len(rows), width), fill[name], dtype=torch.long)
            for target, row in zip(values, rows):
                target[: len(row[name])] = torch.as_tensor(row[name])
            batch[name] = values
        if "position_ids" not in batch:
            lengths = torch.tensor([len(row["input_ids"]) for row in rows])
            batch["attention_mask"] = (torch.arange(width) < lengths[:, None]).long()
        return batch
