"""A job on CPUs runs on CPUs without being told.

From accelerate 1.13 on, a rank without CUDA and without `use_cpu` is a job of its own: every rank trains on all
rows, with no word about it, and `bf16` is refused ("You need to assign use_cpu"). transformers before 4.32 calls
the field no_cuda. `_no_trainer` scripts make accelerate's Accelerator themselves, which has the same question.
"""

from __future__ import annotations

import dataclasses
import functools
from types import ModuleType
from typing import Any

from entrypoints.adapt.adaptation import Adaptation, Situation, Verdict
from entrypoints.cli.import_hooks import after_import

_TRAINER, _ACCELERATOR = "use-cpu", "accelerate-cpu"


def _on_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def _hook_training_arguments(situation: Situation, module: ModuleType) -> None:
    made = module.TrainingArguments
    names = {item.name for item in dataclasses.fields(made)}
    field = "use_cpu" if "use_cpu" in names else "no_cuda"
    post_init = made.__post_init__

    @functools.wraps(post_init)
    def __post_init__(self: Any) -> None:  # noqa: N807 - it is one
        if not getattr(self, field) and not _on_gpu():
            setattr(self, field, True)
            situation.say(_TRAINER, f"--{field} is implied")
        post_init(self)

    made.__post_init__ = __post_init__


def _hook_accelerate(situation: Situation, module: ModuleType) -> None:
    state = getattr(module, "PartialState", None)
    if state is None:  # accelerate of 2022
        return
    init = state.__init__

    @functools.wraps(init)
    def __init__(self: Any, cpu: bool = False, **options: Any) -> None:  # noqa: N807 - it is one
        # Its later objects share the first one's state.
        if not cpu and not state._shared_state and not _on_gpu():
            cpu = True
            situation.say(_ACCELERATOR, "Accelerator(cpu=True) is implied")
        init(self, cpu, **options)

    state.__init__ = __init__


def _look(package: str, situation: Situation) -> Verdict:
    if package not in situation.versions:
        return Verdict(False, f"{package} is not installed")
    if "--use_cpu" in situation.arguments or "--no_cuda" in situation.arguments:
        return Verdict(False, "the command line says it")
    return Verdict(True, "where the script does not say it, and torch finds no GPU")


ADAPTATIONS = (
    Adaptation(
        _TRAINER,
        "TrainingArguments are given use_cpu: without it the ranks would not be one job",
        functools.partial(_look, "transformers"),
        lambda situation: after_import(
            "transformers.training_args", functools.partial(_hook_training_arguments, situation)
        ),
    ),
    Adaptation(
        _ACCELERATOR,
        "accelerate's Accelerator is given cpu=True: without it the ranks would not be one job",
        functools.partial(_look, "accelerate"),
        lambda situation: after_import("accelerate.state", functools.partial(_hook_accelerate, situation)),
    ),
)
