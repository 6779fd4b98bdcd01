"""The tasks. The module of a task reads its rows (`read_rows`) and creates the input of Trainer (`make_job`)."""

from __future__ import annotations

from entrypoints.train.data.splits import Splits, infer_task
from entrypoints.train.data.types import Job, Rows
from entrypoints.train.flags.arguments import TaskArguments
from entrypoints.train.model.pretrained import Loaded
from entrypoints.train.tasks import answering, classification, generation, masking, tagging

_READ_ROWS = {
    "text-classification": classification.read_rows,
    "question-answering": answering.read_rows,
    "token-classification": tagging.read_rows,
    "text-generation": generation.read_rows,
    "fill-mask": masking.read_rows,
}
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
    task = arguments.task or infer_task(splits.any, arguments.label_column_name)
    return _READ_ROWS[task](arguments, splits)


def make_job(arguments: TaskArguments, rows: Rows, loaded: Loaded) -> Job:
    """Tokenize the rows. Raises UsageError if they do not suit the model."""
    return _MAKE_JOB[rows.task](arguments, rows, loaded)
