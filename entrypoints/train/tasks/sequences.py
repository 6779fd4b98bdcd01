"""Tokenized rows as Trainer takes them, one by one or packed, and how a batch of them is padded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from entrypoints.train.tasks.tokens import IGNORED

# Shapes in steps of eight: fewer of them for oneDNN to make kernels for.
_STEP = 8


@dataclass(frozen=True)
class Example:
    """Tokens and their labels, which are as many; IGNORED where nothing is to be learnt."""

    ids: Any
    labels: Any

    @staticmethod
    def of(ids: Sequence[int], labels: Sequence[int]) -> Example:
        return Example(numpy.asarray(ids, dtype=numpy.int32), numpy.asarray(labels, dtype=numpy.int32))

    def __len__(self) -> int:
        return len(self.ids)


class Sequences(torch.utils.data.Dataset):  # type: ignore[misc]  # torch is untyped on the host
    """One example a row, or those of one bin: then with positions that begin anew at each example."""

    def __init__(self, examples: Sequence[Example], bins: list[list[int]] | None = None) -> None:
        self._examples = examples
        self._bins = bins

    def __len__(self) -> int:
        return len(self._examples) if self._bins is None else len(self._bins)

    def lengths(self) -> list[int]:
        if self._bins is None:
            return [len(example) for example in self._examples]
        return [sum(len(self._examples[row]) for row in rows) for rows in self._bins]

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self._bins is None:
            return {"input_ids": self._examples[index].ids, "labels": self._examples[index].labels}
        examples = [self._examples[row] for row in self._bins[index]]
        return {
            "input_ids": numpy.concatenate([example.ids for example in examples]),
            "labels": numpy.concatenate([example.labels for example in examples]),
            "position_ids": numpy.concatenate([numpy.arange(len(example)) for example in examples]),
        }


@dataclass(frozen=True)
class Padder:
    """A batch as long as its longest row, padded on the right. `length`: the longest that a row may be.

    A packed batch has no attention mask: models take the boundaries from the positions, and all zeros at the end
    of the positions are padding.
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
