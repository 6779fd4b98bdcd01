"""Text classification: accuracy and F1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

import numpy
import torch

from entrypoints.cli.errors import UsageError
from entrypoints.train.data import classification_rows
from entrypoints.train.data.classification_rows import LabelledTexts
from entrypoints.train.data.language_rows import TaggedWords
from entrypoints.train.data.splits import Splits
from entrypoints.train.data.tables import parse_text_columns
from entrypoints.train.data.types import Rows, TrainerInputs
from entrypoints.train.flags.arguments import TaskArguments
from entrypoints.train.model.pretrained import Loaded, label_names_of
from entrypoints.train.tasks.sequences import sequence_length, tokenizer_padder
from entrypoints.train.tasks.tokens import check_evaluated

Labelled = Union[LabelledTexts, TaggedWords]

METRIC = "accuracy"


class LabelledTokens(torch.utils.data.Dataset):
    """Tokenizes each row on access, which is cheap compared with a training step. A row: lists of integers."""

    def __init__(self, data: LabelledTexts, label_names: Sequence[str], tokenizer: Any, max_length: int) -> None:
        numbers = {name: number for number, name in enumerate(label_names)}
        self._data = data
        self._labels = [numbers[label] for label in data.labels]
        self._tokenizer = tokenizer
        self._max_length = max_length

    def __len__(self) -> int:
        return len(self._data)

    def lengths(self) -> list[int]:
        return [len(ids) for ids in self._encode(self._data.texts, self._data.pairs)["input_ids"]]

    def __getitem__(self, index: int) -> dict[str, Any]:
        pairs = self._data.pairs
        encoded = self._encode(self._data.texts[index], None if pairs is None else pairs[index])
        return {**encoded, "labels": self._labels[index]}

    def _encode(self, texts: Any, pairs: Any) -> Any:
        return self._tokenizer(texts, pairs, truncation=True, max_length=self._max_length)


class Accuracy:
    """Trainer's compute_metrics. Predictions: float32 array [rows, labels]. `samples`: the rows evaluated."""

    def __init__(self, rows: int, label_count: int) -> None:
        self._rows = rows
        self._label_count = label_count

    def __call__(self, evaluated: Any) -> dict[str, float]:
        logits = evaluated.predictions[0] if isinstance(evaluated.predictions, tuple) else evaluated.predictions
        labels = evaluated.label_ids
        check_evaluated(self._rows, logits, labels)
        # Imported late: the import takes half a second.
        from sklearn.metrics import accuracy_score, f1_score

        chosen = numpy.argmax(logits, axis=-1)
        scores = torch.from_numpy(logits).float()
        return {
            "accuracy": float(accuracy_score(labels, chosen)),
            "f1": float(
                f1_score(labels, chosen, average="binary" if self._label_count == 2 else "macro", zero_division=0)
            ),
            # Over exactly these rows: Trainer's own mean gives the last batches a wrong weight.
            "loss": float(torch.nn.functional.cross_entropy(scores, torch.from_numpy(labels).long())),
            "samples": float(len(labels)),
        }


def read_rows(arguments: TaskArguments, splits: Splits) -> Rows:
    """The rows for training and evaluation. Raises UsageError that names the first bad row."""
    names = parse_text_columns(arguments.text_column_names)
    label = arguments.label_column_name
    train = classification_rows.labelled_texts(splits.train, label, names) if splits.train else None
    if train is not None:
        # Validation data may have more columns: use those of the training data.
        names = train.text_columns
    validation = classification_rows.labelled_texts(splits.validation, label, names) if splits.validation else None
    labels = choose_labels(arguments, train, validation, splits.any.classes.get(label, []))
    used = next(rows.text_columns for rows in (train, validation) if rows is not None)
    note = f"text-classification: {len(labels)} labels from '{label}', text from '{', '.join(used)}'"
    return Rows("text-classification", train, validation, labels, (note,))


def choose_labels(
    arguments: TaskArguments, train: Labelled | None, validation: Labelled | None, classes: Sequence[str] = ()
) -> list[str]:
    """The labels of the training data; for evaluation alone, of the model. `classes`: those of the data set.

    Raises UsageError for validation data with other labels.
    """
    if train is not None:
        names = classification_rows.label_names(train.labels)
        if isinstance(train, LabelledTexts):
            classification_rows.check_label_names(names, train)
        names = classification_rows.in_order(names, classes)
    elif validation is not None:
        names = label_names_of(arguments) or classification_rows.label_names(validation.labels)
    else:
        raise UsageError("no data: write --train_file and --validation_file, or --dataset_name")
    if validation is not None:
        classification_rows.check_known_labels(names, validation)
    return names


def make_inputs(arguments: TaskArguments, rows: Rows, loaded: Loaded) -> TrainerInputs:
    """Raises UsageError if max_seq_length does not fit the model."""
    length = sequence_length(arguments, rows.task, loaded.limit)
    labels = rows.labels or []

    def tokens(split: LabelledTexts | None) -> Any:
        return LabelledTokens(split, labels, loaded.tokenizer, length) if split else None

    return TrainerInputs(
        train=tokens(rows.train),
        validation=tokens(rows.validation),
        collate=tokenizer_padder(loaded.tokenizer, length, arguments.pad_to_max_length),
        compute_metrics=Accuracy(len(rows.validation), len(labels)) if rows.validation else None,
        metric=METRIC,
        max_seq_length=length,
    )
