"""Checks the optimizer and the schedule early: Trainer creates them last."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from transformers import Trainer, get_scheduler

from entrypoints.cli.errors import UsageError, one_line

if TYPE_CHECKING:
    from transformers import TrainingArguments

# Arguments that only some optimizers use. The others silently ignore them.
_FOR_SOME = ("optim_args", "optim_target_modules")


def check(arguments: TrainingArguments, model: Any) -> None:
    """Raises UsageError for a missing package, or for a missing or unknown argument."""
    name = str(getattr(arguments.optim, "value", arguments.optim))  # Hugging Face's enumerations
    try:
        chosen = Trainer.get_optimizer_cls_and_kwargs(arguments, model)
    except (ImportError, ValueError, TypeError) as error:
        raise UsageError(f"--optim {name}: {one_line(error)}") from error
    for field in _FOR_SOME:
        if getattr(arguments, field, None):
            without = copy.copy(arguments)
            setattr(without, field, None)
            if Trainer.get_optimizer_cls_and_kwargs(without, model) == chosen:
                raise UsageError(f"--optim {name} does not use --{field}: drop it, or choose another --optim")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=arguments.learning_rate)
    schedule = str(getattr(arguments.lr_scheduler_type, "value", arguments.lr_scheduler_type))
    try:
        get_scheduler(schedule, optimizer, 0, 1, scheduler_specific_kwargs=arguments.lr_scheduler_kwargs or {})
    except (ImportError, ValueError, TypeError) as error:
        raise UsageError(f"--lr_scheduler_type {schedule}: {one_line(error)}") from error
