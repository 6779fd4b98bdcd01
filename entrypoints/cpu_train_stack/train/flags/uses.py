"""Which flags a task uses. A flag that the run would silently ignore is refused."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.flags.arguments import Parsed, Task, Tasks
from cpu_train_stack.train.flags.flag import checks

# Data turn do_eval and do_train on, unless one of both is given.
_TURNED_ON_BY = {"do_eval": "validation_file", "do_train": "train_file"}


def check(parsed: Parsed, task: Task, tasks: Tasks, is_adapter: bool = False) -> None:
    """Raise UsageError that lists every given flag that a run of this task would ignore.

    `tasks`: all of them. `is_adapter`: whether the model is an adapter, which has its own settings. Flags of older
    guides, which are accepted under another name with a note, may have no effect.
    """
    renamed = {item.flag.now for item in parsed.cleaned.found}
    flags = {name: value for name, value in parsed.flags.items() if name not in renamed}
    # `--packing false` asks for nothing.
    defaults = {item.name: item.default for item in fields(parsed.task)}
    given = [name for name, value in flags.items() if value or value != defaults.get(name, value)]
    values = {**vars(parsed.task), **parsed.training}
    of_tasks = {
        name: [one.name for one in tasks.values() if name in (*one.flags.split(), *one.own_flags)]
        for name in given
    }
    strange = [name for name, names in of_tasks.items() if names and task.name not in names]
    found = [
        f"--{name} is for {', '.join(of_tasks[name])}, but the task is {task.name}: remove it" for name in strange
    ]
    found += [
        f"--{name} has no effect without --{other}: add --{_missing(other, values)} or remove --{name}"
        for name, other in checks(parsed.task, "needs").items()
        if name in given and name not in strange and not values.get(other)
    ]
    remedy = None
    if is_adapter:
        remedy = f"remove it, because the model '{parsed.task.model_name_or_path}' is an adapter"
    elif not parsed.task.use_peft:
        remedy = "add --use_peft or remove it"
    if remedy is not None:
        adapter = [name for name in defaults if name.startswith("lora_") and name in given]
        found += [f"--{name} is for a new adapter: {remedy}" for name in adapter]
    if found:
        raise UsageError("; ".join(found))


def _missing(flag: str, values: dict[str, Any]) -> str:
    """What to add for the effect of `flag`: its data if there are none."""
    data = _TURNED_ON_BY.get(flag, flag)
    return flag if values.get(data) or values["dataset_name"] else data
