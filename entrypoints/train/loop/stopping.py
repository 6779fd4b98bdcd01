"""Stops training with a checkpoint when a file asks for it, before a time limit for example."""

# ruff: noqa: ARG002 - transformers decides what a callback is called with.
from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from entrypoints.group.create import gather
from entrypoints.train.loop.speed import steps_within

# Between two checks, each of which is a collective. Slurm sends its signal minutes before the limit.
CHECK_SECONDS = 5.0


class StopOnRequest(TrainerCallback):
    """Asks Trainer for a checkpoint and the end of the training, at the same step on all ranks.

    A rank may see the file before the others: they agree at steps that all of them know.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.is_stopped = False
        self._began = 0.0
        self._first = self._next = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._began, self._first, self._next = time.monotonic(), state.global_step, state.global_step + 1

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step = state.global_step
        if step < self._next or step >= state.max_steps:
            return
        seconds = (time.monotonic() - self._began) / (step - self._first)
        found, speeds = zip(*gather((self.file.exists(), seconds)))
        self._next = step + steps_within(CHECK_SECONDS, speeds)
        if any(found):
            self.is_stopped = control.should_save = control.should_training_stop = True
