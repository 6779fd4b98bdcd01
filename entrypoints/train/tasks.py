"""From rows to what Trainer takes, for either task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

from entrypoints.errors import UsageError
from entrypoints.train import columns, model
from entrypoints.train.arguments import TaskArguments
from entrypoints.train.data import Splits


@dataclass(frozen=True)
class Rows:
    """The checked rows of a run. `labels` is None for question-answering."""

    task: str
    train: Any
    validation: Any
    labels: list[str] | None
    notes: tuple[str, ...]

    def fingerprint(self) -> tuple[Any, ...]:
        """What must be the same on every rank: sizes, contents, and the order of the labels."""
        splits = (self.train, self.validation)
        return (self.task, self.labels, *((len(split), split.digest()) for split in splits if split is not None))


@dataclass(frozen=True)
class Job:
    """What Trainer takes. `metric` is the name that result.json reports before and after training."""

    train: Any
    validation: Any
    collate: Any
    compute_metrics: Callable[[Any], dict[str, float]] | None
    metric: str
    max_seq_length: int


def check_rows(task: str, arguments: TaskArguments, splits: Splits) -> Rows:
    """Checks columns, texts, labels and answers. Raises UsageError with the first bad row."""
    if task == "question-answering":
        return _questions(arguments, splits)
    names = columns.parse_text_columns(arguments.text_column_names)
    label = arguments.label_column_name
    train = columns.labelled_texts(splits.train, label, names) if splits.train else None
    if train is not None:
        # Validation data may have more columns; the texts are those of the training data.
        names = train.text_columns
    validation = columns.labelled_texts(splits.validation, label, names) if splits.validation else None
    labels = _label_names(arguments, train, validation)
    if validation is not None:
        columns.check_known_labels(labels, validation)
    used = (train or validation).text_columns  # type: ignore[union-attr]  # Splits.any refused a run without data
    note = f"text-classification: {len(labels)} labels from '{label}', text from '{', '.join(used)}'"
    return Rows("text-classification", train, validation, labels, (note,))


def _label_names(
    arguments: TaskArguments, train: columns.LabelledTexts | None, validation: columns.LabelledTexts | None
) -> list[str]:
    if train is not None:
        names = columns.label_names(train.labels)
        columns.check_label_names(names, train)
        return names
    if validation is None:
        raise UsageError("no data: write --train_file and --validation_file, or --dataset_name")
    # Evaluation alone: the labels are those that the model was trained for.
    return model.label_names_of(arguments) or columns.label_names(validation.labels)


def _questions(arguments: TaskArguments, splits: Splits) -> Rows:
    with_negative = arguments.version_2_with_negative
    notes = []
    train = columns.questions(splits.train, with_negative) if splits.train else None
    if train is not None:
        train, left_out = columns.trainable(train)
        if left_out:
            notes.append(f"{left_out} training questions are left out: their answer is not at its answer_start")
    validation = columns.questions(splits.validation, with_negative) if splits.validation else None
    return Rows("question-answering", train, validation, None, tuple(notes))


def make_job(arguments: TaskArguments, rows: Rows, loaded: model.Loaded) -> Job:
    """Tokenizes. Raises UsageError if max_seq_length does not fit the model."""
    if rows.task == "question-answering":
        from entrypoints.train import answering

        return answering.make_job(arguments, rows, loaded)
    from entrypoints.train import classification

    length = model.sequence_length(arguments.max_seq_length, classification.DEFAULT_LENGTH, loaded.limit)
    labels = rows.labels or []

    def tokens(split: columns.LabelledTexts | None) -> Any:
        return classification.LabelledTokens(split, labels, loaded.tokenizer, length) if split else None

    return Job(
        train=tokens(rows.train),
        validation=tokens(rows.validation),
        collate=classification.collator(loaded.tokenizer, length, arguments.pad_to_max_length),
        compute_metrics=classification.Accuracy(len(rows.validation), len(labels)) if rows.validation else None,
        metric=classification.METRIC,
        max_seq_length=length,
    )
