"""The tasks. A task's module reads its rows (`read_rows`) and creates the input of Trainer (`make_inputs`)."""

from __future__ import annotations

from cpu_train_stack.train.data.splits import Splits, infer_task
from cpu_train_stack.train.data.token_files import TokenFolder
from cpu_train_stack.train.data.types import Rows, TrainerInputs
from cpu_train_stack.train.flags.arguments import TaskArguments
from cpu_train_stack.train.model.pretrained import Loaded
from cpu_train_stack.train.tasks import answering, classification, generation, masking, seq2seq, tagging

_TASKS = {
    "text-classification": classification,
    "question-answering": answering,
    "token-classification": tagging,
    "text-generation": generation,
    "text2text-generation": seq2seq,
    "fill-mask": masking,
}


def read_rows(arguments: TaskArguments, splits: Splits) -> Rows:
    """Check columns, texts, labels and answers. The task is --task, or the task that the columns allow.

    Raises UsageError that names the first bad row.
    """
    task = arguments.task or infer_task(splits.any, arguments.label_column_name)
    rows: Rows = _TASKS[task].read_rows(arguments, splits)
    return rows


def make_inputs(arguments: TaskArguments, rows: Rows, loaded: Loaded, folder: TokenFolder) -> TrainerInputs:
    """Tokenize the rows, in files of `folder` if there are many. Raises UsageError if they do not suit the
    model."""
    inputs: TrainerInputs = _TASKS[rows.task].make_inputs(arguments, rows, loaded, folder)
    return inputs
