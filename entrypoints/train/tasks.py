"""From tables to what Trainer takes, for either task."""

from __future__ import annotations

from entrypoints.errors import UsageError
from entrypoints.train import columns, model
from entrypoints.train.arguments import TaskArguments
from entrypoints.train.data import Splits
from entrypoints.train.job import Job, Rows
from entrypoints.train.model import Loaded


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
            notes.append(f"training questions left out, their answer is not at its answer_start: {left_out}")
    validation = columns.questions(splits.validation, with_negative) if splits.validation else None
    return Rows("question-answering", train, validation, None, tuple(notes))


def make_job(arguments: TaskArguments, rows: Rows, loaded: Loaded) -> Job:
    """Tokenizes. Raises UsageError if max_seq_length does not fit the model."""
    if rows.task == "question-answering":
        from entrypoints.train import answering

        return answering.make_job(arguments, rows, loaded)
    from entrypoints.train import classification

    return classification.make_job(arguments, rows, loaded)
