"""Trainer records what its steps take, per rank, in its output folder (`records`). Torch-free until used."""

from __future__ import annotations

from typing import Any

from cpu_train_stack.adapt.adaptation import Adaptation, Releases, Situation, after_creation, on_import

NAME = "step-records"
# Where Trainer has `get_batch_samples`, in which a step begins.
_RELEASES = Releases("transformers", "4.46")


def _hook(_situation: Situation, module: Any) -> None:
    def attach(trainer: Any) -> None:
        from cpu_train_stack.speed.step_clock import StepRecorder, clock_of

        trainer.add_callback(StepRecorder(clock_of(trainer)))

    after_creation(module.Trainer, attach)


ADAPTATIONS = (
    Adaptation(
        NAME, "the steps of Trainer are recorded in its output folder, for `watch` and `report`",
        (_RELEASES,), on_import("transformers.trainer", _hook, _RELEASES),
        when="if the script trains with Trainer",
    ),
)  # fmt: skip
