"""From tables to what Trainer takes, for each task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

from entrypoints.cli.errors import UsageError
from entrypoints.train.data import classification_rows, language_rows
from entrypoints.train.data.load import Splits
from entrypoints.train.data.types import Job, Rows
from entrypoints.train.flags.arguments import TaskArguments
from entrypoints.train.model import load as model
from entrypoints.train.model.load import Loaded

Labelled = Union[classification_rows.LabelledTexts, language_rows.TaggedWords]


def check_rows(task: str, arguments: TaskArguments, splits: Splits) -> Rows:
    """Checks columns, texts, labels and answers. Raises UsageError with the first bad row."""
    if task == "question-answering":
        return _questions(arguments, splits)
    if task in ("text-generation", "fill-mask"):
        return _documents(task, arguments, splits)
    if task == "token-classification":
        return _tagged(arguments, splits)
    names = classification_rows.parse_text_columns(arguments.text_column_names)
    label = arguments.label_column_name
    train = classification_rows.labelled_texts(splits.train, label, names) if splits.train else None
    if train is not None:
        # Validation data may have more columns; the texts are those of the training data.
        names = train.text_columns
    validation = classification_rows.labelled_texts(splits.validation, label, names) if splits.validation else None
    labels = _label_names(arguments, train, validation, splits.any.classes.get(label, []))
    if validation is not None:
        classification_rows.check_known_labels(labels, validation)
    used = (train or validation).text_columns  # type: ignore[union-attr]  # Splits.any refused a run without data
    note = f"text-classification: {len(labels)} labels from '{label}', text from '{', '.join(used)}'"
    return Rows("text-classification", train, validation, labels, (note,))


def _label_names(
    arguments: TaskArguments, train: Labelled | None, validation: Labelled | None, classes: Sequence[str] = ()
) -> list[str]:
    """`classes`: the labels that the data set itself names."""
    if train is not None:
        names = classification_rows.label_names(train.labels)
        if isinstance(train, classification_rows.LabelledTexts):
            classification_rows.check_label_names(names, train)
        return classification_rows.in_order(names, classes)
    if validation is None:
        raise UsageError("no data: write --train_file and --validation_file, or --dataset_name")
    # Evaluation alone: the labels are those that the model was trained for.
    return model.label_names_of(arguments) or classification_rows.label_names(validation.labels)


def _questions(arguments: TaskArguments, splits: Splits) -> Rows:
    with_negative = arguments.version_2_with_negative
    notes = []
    train = classification_rows.questions(splits.train, with_negative) if splits.train else None
    if train is not None:
        train, left_out = classification_rows.trainable(train)
        if left_out:
            notes.append(f"training questions left out, their answer is not at its answer_start: {left_out}")
    validation = classification_rows.questions(splits.validation, with_negative) if splits.validation else None
    return Rows("question-answering", train, validation, None, tuple(notes))


def _documents(task: str, arguments: TaskArguments, splits: Splits) -> Rows:
    names = classification_rows.parse_text_columns(arguments.text_column_names)
    if names is not None and len(names) != 1:
        raise UsageError(f"--text_column_names '{arguments.text_column_names}': {task} takes one column of text")
    column = names[0] if names else None
    train, validation = (
        language_rows.documents(table, column) if table else None for table in (splits.train, splits.validation)
    )
    kinds = {split.kind for split in (train, validation) if split is not None}
    if len(kinds) > 1:
        found = " and ".join(sorted(kind.value for kind in kinds))
        raise UsageError(f"training and validation data must agree, found {found}: write files of one kind")
    if task == "fill-mask" and kinds != {language_rows.Kind.TEXT}:
        raise UsageError(f"fill-mask takes texts, found {kinds.pop().value}: write --text_column_names")
    return Rows(task, train, validation, None, (f"{task}: rows of {kinds.pop().value}",))


def _tagged(arguments: TaskArguments, splits: Splits) -> Rows:
    column = arguments.label_column_name
    train, validation = (
        language_rows.tagged_words(table, column) if table else None for table in (splits.train, splits.validation)
    )
    labels = _label_names(arguments, train, validation)
    if validation is not None:
        classification_rows.check_known_labels(labels, validation)
    return Rows("token-classification", train, validation, labels, (f"token-classification: {len(labels)} tags",))


def make_job(arguments: TaskArguments, rows: Rows, loaded: Loaded) -> Job:
    """Tokenizes. Raises UsageError if max_seq_length does not fit the model."""
    if rows.task == "question-answering":
        from entrypoints.train.tasks import answering

        return answering.make_job(arguments, rows, loaded)
    if rows.task == "text-generation":
        from entrypoints.train.tasks import generation

        return generation.make_job(arguments, rows, loaded)
    if rows.task == "fill-mask":
        from entrypoints.train.tasks import masking

        return masking.make_job(arguments, rows, loaded)
    if rows.task == "token-classification":
        from entrypoints.train.tasks import tagging

        return tagging.make_job(arguments, rows, loaded)
    from entrypoints.train.tasks import classification

    return classification.make_job(arguments, rows, loaded)
