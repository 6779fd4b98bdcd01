"""Runs in the image: reads data sets with classes, as the hub has them, and prints what becomes of the labels."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from datasets import ClassLabel, Dataset, Features, List, Value
from transformers import BertConfig

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.data import splits
from cpu_train_stack.train.flags.arguments import all_arguments
from cpu_train_stack.train.tasks import registry

Arguments = all_arguments(registry.TASKS)
TEXT, WORDS = Value("string"), List(Value("string"))
CLASS = ClassLabel(names=["no", "yes"])


def read(rows: dict[str, list[Any]], **features: Any) -> str:
    with tempfile.TemporaryDirectory() as folder:
        Dataset.from_dict(rows, Features(features)).to_parquet(str(Path(folder) / "train.parquet"))
        arguments = Arguments(dataset_name=folder)
        tables = splits.load(arguments, do_train=True, do_eval=False)
        try:
            found = registry.read_rows(arguments, tables).train
        except UsageError as error:
            return str(error).replace(folder, "DATA")
    return str(getattr(found, "tags", found.labels))


def texts(labels: list[Any], kind: Any) -> str:
    rows: dict[str, list[Any]] = {"text": ["a b"] * len(labels), "label": labels}
    return read(rows, text=TEXT, label=kind)


def words(tags: list[list[int]], others: list[list[int]]) -> str:
    rows: dict[str, list[Any]] = {"tokens": [["a", "b"]] * len(tags), "ner_tags": tags, "pos_tags": others}
    return read(rows, tokens=WORDS, ner_tags=List(CLASS), pos_tags=List(CLASS))


def evaluated_alone() -> str:
    """The labels of a model that does not name them."""
    rows = {"text": ["a b"] * 2, "label": [0, 1]}
    features = Features({"text": TEXT, "label": ClassLabel(names=["yes", "no"])})
    with tempfile.TemporaryDirectory() as folder:
        Dataset.from_dict(rows, features).to_parquet(str(Path(folder) / "validation.parquet"))
        BertConfig().save_pretrained(folder)
        arguments = Arguments(dataset_name=folder, model_name_or_path=folder, task="text-classification")
        tables = splits.load(arguments, do_train=False, do_eval=True)
        return str(registry.read_rows(arguments, tables).labels)


for said in (
    texts([0, 1, 1], CLASS),
    texts([0, 1, -1], CLASS),
    words([[0, 1], [1, 1]], [[-1, -100], [0, 1]]),
    words([[0, 1], [1, -1]], [[0, 0], [0, 0]]),
    words([[0, -100], [1, 1]], [[0, 0], [0, 0]]),
    evaluated_alone(),
):
    sys.stdout.write(f"{said}\n")
