"""The tasks: each module of this folder that defines TASK, with `read_rows` and `make_inputs`."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.data.splits import Splits
from cpu_train_stack.train.data.tables import DataTable
from cpu_train_stack.train.data.token_files import TokenFolder
from cpu_train_stack.train.data.types import Rows, TrainerInputs
from cpu_train_stack.train.flags.arguments import Task, TaskArguments
from cpu_train_stack.train.model.pretrained import Loaded
from cpu_train_stack.train.tasks.tokens import check_release

_NAMES = (f"{__package__}.{module.name}" for module in pkgutil.iter_modules([str(Path(__file__).parent)]))
_WITH_TASK = (module for module in map(import_module, _NAMES) if hasattr(module, "TASK"))
_MODULES = {module.TASK.name: module for module in sorted(_WITH_TASK, key=lambda module: module.TASK.order)}
TASKS: dict[str, Task] = {name: module.TASK for name, module in _MODULES.items()}


def read_rows(arguments: TaskArguments, splits: Splits) -> Rows:
    """Check columns, texts, labels and answers. The task is --task, or the task that the columns allow.

    Raises UsageError that names the first bad row.
    """
    name = arguments.task or infer_task(splits.any, arguments.label_column_name)
    rows: Rows = _MODULES[name].read_rows(arguments, splits)
    return rows


def infer_task(table: DataTable, label_column: str) -> str:
    """The first task whose columns the table has. Raises UsageError if there is none."""
    for task in TASKS.values():
        if task.fits is not None and task.fits(table, label_column):
            return task.name
    expected = [
        f"{task.columns.format(label=label_column)} for {task.name}"
        for task in reversed(TASKS.values())
        if task.fits is not None
    ]
    texts = " or ".join(f"--task {task.name}" for task in TASKS.values() if task.takes_text)
    raise UsageError(
        f"{table.source} has the columns {table.listing}: expected {'; '.join(expected)}. For texts "
        f"without labels, pass {texts}"
    )


def make_inputs(arguments: TaskArguments, rows: Rows, loaded: Loaded, folder: TokenFolder) -> TrainerInputs:
    """Tokenize the rows, in files of `folder` if there are many. Raises UsageError if they do not suit the
    model."""
    inputs: TrainerInputs = _MODULES[rows.task.name].make_inputs(arguments, rows, loaded, folder)
    if inputs.loss is not None:
        check_release(rows.task.name)
    return inputs
