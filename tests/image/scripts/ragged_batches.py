"""An iterable data set with rows of different lengths: run by the tests, unmodified, on one and two ranks."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, IterableDataset


class Rows(IterableDataset[dict[str, Any]]):
    def __iter__(self) -> Iterator[dict[str, Any]]:
        for row in range(11):
            yield {"input_ids": [row] * (1 + row * 7 % 5), "labels": row}


def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
    longest = max(len(row["input_ids"]) for row in rows)
    ids = [row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in rows]
    mask = [[1] * len(row["input_ids"]) + [0] * (longest - len(row["input_ids"])) for row in rows]
    labels = torch.tensor([row["labels"] for row in rows])
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask), "labels": labels}


accelerator = Accelerator(cpu=True)
loader = accelerator.prepare(DataLoader(Rows(), batch_size=2, collate_fn=collate))
seen = []
for batch in loader:
    assert all(value.is_contiguous() for value in batch.values())  # losses call labels.view(-1)
    seen.append({name: value.tolist() for name, value in batch.items()})
print(json.dumps({"rank": int(os.environ["RANK"]), "batches": seen}) + "\n", end="", flush=True)
