"""Trainer records what its steps take, per rank, in its output folder (`records`). Torch-free until used."""

from __future__ import annotations

from typing import Any

from cpu_train_stack.adapt.adaptation import Adaptation, Situation, after_creation, on_import, since

NAME = "step-records"
# The first release whose Trainer has `get_batch_samples`, where a step begins.
_OLDEST_TRANSFORMERS = "4.46"


_check = since(
    "transformers",
    _OLDEST_TRANSFORMERS,
    "if the script trains with Trainer",
    f"needs transformers {_OLDEST_TRANSFORMERS} or newer",
)


def _hook(situation: Situation, module: Any) -> None:
    if not _check(situation).applies:
        return

    def attach(trainer: Any) -> None:
        from cpu_train_stack.adapt.step_clock import StepClock, StepRecorder

        trainer.add_callback(StepRecorder(StepClock(trainer)))

    after_creation(module.Trainer, attach)


ADAPTATIONS = (
    Adaptation(
        NAME, "the steps of Trainer are recorded in its output folder, for `watch` and `report`",
        _check, on_import("transformers.trainer", _hook),
    ),
)  # fmt: skip
