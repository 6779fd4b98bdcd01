"""Whether optimizer and schedule can be made as they are asked for: Trainer makes them when all else is done."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from transformers import Trainer, get_scheduler

from entrypoints.errors import UsageError

if TYPE_CHECKING:
    from transformers import TrainingArguments

# What only some optimizers read; the others would ignore it without a word.
_FOR_SOME = ("optim_args", "optim_target_modules")


def check(arguments: TrainingArguments, model: Any) -> None:
    """Raises UsageError where a package or an argument is missing, or an argument is none of theirs."""
    name = str(getattr(arguments.optim, "value", arguments.optim))  # Hugging Face's enumerations
    try:
        made = Trainer.get_optimizer_cls_and_kwargs(arguments, model)
    except (ImportError, ValueError, TypeError) as error:
        raise UsageError(f"--optim {name}: {_one_line(error)}") from error
    for field in _FOR_SOME:
        if getattr(arguments, field, None):
            without = copy.copy(arguments)
            setattr(without, field, None)
            if Trainer.get_optimizer_cls_and_kwargs(without, model) == made:
                raise UsageError(f"--{field} means nothing to --optim {name}: drop it, or write another --optim")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=arguments.learning_rate)
    schedule = str(getattr(arguments.lr_scheduler_type, "value", arguments.lr_scheduler_type))
    try:
        get_scheduler(schedule, optimizer, 0, 1, scheduler_specific_kwargs=arguments.lr_scheduler_kwargs or {})
    except (ImportError, ValueError, TypeError) as error:
        raise UsageError(f"--lr_scheduler_type {schedule}: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
