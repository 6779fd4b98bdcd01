"""The tasks: for each task, how tables become checked rows, and rows become the input of Trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

from entrypoints.cli.errors import UsageError
from entrypoints.train.data import classification_rows, language_rows
from entrypoints.train.data.splits import Splits
from entrypoints.train.data.types import Job, Rows
from entrypoints.train.flags.arguments import TaskArguments
from entrypoints.train.model import pretrained
from entrypoints.train.tasks import answering, classification, generation, masking, tagging

Labelled = Union[classification_rows.LabelledTexts, language_rows.TaggedWords]

_MAKE_JOB = {
    "text-classification": classification.make_job,
    "question-answering": answering.make_job,
    "token-classification": tagging.make_job,
    "text-generation": generation.make_job,
    "fill-mask": masking.make_job,
}


def read_rows(arguments: TaskArguments, splits: Splits) -> Rows:
    """Check columns, texts, labels and answers. The task is --task, or the task that the columns allow.

    Raises UsageError that names the first bad row.
    """
    task = arguments.task or classification_rows.infer_task(splits.any, arguments.label_column_name)
    if task == "question-answering":
        return _questions(arguments, splits)
    if task in ("text-generation", "fill-mask"):
        return _documents(task, arguments, splits)
    if task == "token-classification":
        return _tagged_words(arguments, splits)
    return _labelled_texts(arguments, splits)


def make_job(arguments: TaskArguments, rows: Rows, loaded: pretrained.Loaded) -> Job:
    """Tokenize the rows. Raises UsageError if they do not suit the model."""
    return _MAKE_JOB[rows.task](arguments, rows, loaded)


def _labelled_texts(arguments: TaskArguments, splits: Splits) -> Rows:
    names = classification_rows.parse_text_columns(arguments.text_column_names)
    label = arguments.label_column_name
    train = classification_rows.labelled_texts(splits.train, label, names) if splits.train else None
    if train is not None:
        # Validation data may have more columns: use those of the training data.
        names = train.text_columns
    validation = classification_rows.labelled_texts(splits.validation, label, names) if splits.validation else None
    labels = _label_names(arguments, train, validation, splits.any.classes.get(label, []))
    used = (train or validation).text_columns  # type: ignore[union-attr]  # Splits.any refused a run without data
    note = f"text-classification: {len(labels)} labels from '{label}', text from '{', '.join(used)}'"
    return Rows("text-classification", train, validation, labels, (note,))


def _tagged_words(arguments: TaskArguments, splits: Splits) -> Rows:
    column = arguments.label_column_name
    train, validation = (
        language_rows.tagged_words(table, column) if table else None for table in (splits.train, splits.validation)
    )
    labels = _label_names(arguments, train, validation)
    return Rows("token-classification", train, validation, labels, (f"token-classification: {len(labels)} tags",))


def _label_names(
    arguments: TaskArguments, train: Labelled | None, validation: Labelled | None, classes: Sequence[str] = ()
) -> list[str]:
    """The labels of the training data; for evaluation alone, of the model. `classes`: those of the data set.

    Raises UsageError for validation data with other labels.
    """
    if train is not None:
        names = classification_rows.label_names(train.labels)
        if isinstance(train, classification_rows.LabelledTexts):
            classification_rows.check_label_names(names, train)
        names = classification_rows.in_order(names, classes)
    elif validation is not None:
        names = pretrained.label_names_of(arguments) or classification_rows.label_names(validation.labels)
    else:
        raise UsageError("no data: write --train_file and --validation_file, or --dataset_name")
    if validation is not None:
        classification_rows.check_known_labels(names, validation)
    return names


def _questions(arguments: TaskArguments, splits: Splits) -> Rows:
    with_negative = arguments.version_2_with_negative
    notes = []
    train = classification_rows.questions(splits.train, with_negative) if splits.train else None
    if train is not None:
        train, left_out = classification_rows.trainable(train)
        if left_out:
            notes.append(f"training questions left out because the answer is not at answer_start: {left_out}")
    validation = classification_rows.questions(splits.validation, with_negative) if splits.validation else None
    return Rows("question-answering", train, validation, None, tuple(notes))


def _documents(task: str, arguments: TaskArguments, splits: Splits) -> Rows:
    names = classification_rows.parse_text_columns(arguments.text_column_names)
    if names is not None and len(names) != 1:
        raise UsageError(
            f"--text_column_names '{arguments.text_column_names}' names {len(names)} columns, expected one: "
            f"{task} uses one column of text"
        )
    column = names[0] if names else None
    train, validation = (
        language_rows.documents(table, column) if table else None for table in (splits.train, splits.validation)
    )
    kinds = {split.kind for split in (train, validation) if split is not None}
    if len(kinds) > 1:
        found = " and ".join(sorted(kind.value for kind in kinds))
        raise UsageError(f"found {found}: training and validation data must have rows of the same kind")
    if task == "fill-mask" and kinds != {language_rows.Kind.TEXT}:
        raise UsageError(f"found {kinds.pop().value}, expected texts for fill-mask: write --text_column_names")
    return Rows(task, train, validation, None, (f"{task}: rows of {kinds.pop().value}",))
