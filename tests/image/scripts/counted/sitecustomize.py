"""In a folder of PYTHONPATH: each rank prints how many texts it has tokenized, after each split."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from cpu_train_stack.cli.import_hooks import after_import


def count(generation: Any) -> None:
    batches = generation.batches

    def counted(items: Any) -> Iterator[Any]:
        texts = 0
        try:
            for batch in batches(items):
                texts += len(batch)
                yield batch
        finally:
            print(f"rank {os.environ['RANK']} tokenized {texts} texts")

    generation.batches = counted


after_import("cpu_train_stack.train.tasks.generation", count)
