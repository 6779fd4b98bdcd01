"""Stops training with a checkpoint when a file asks for it: before a time limit, or after a launcher's SIGTERM."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from cpu_train_stack.group.create import gather
from cpu_train_stack.train.loop.speed import steps_within

# Between two checks, each of which is a collective. Docker kills a container 10 s after SIGTERM.
CHECK_SECONDS = 2.0


class StopOnRequest(TrainerCallback):
    """Asks Trainer for a checkpoint and the end of the training, at the same step on all ranks.

    A rank may see the file before the others: they agree at steps that all of them know.
    """

    def __init__(self, files: Sequence[Path], ready: Path | None = None) -> None:
        """`files`: those that any rank names, the same on all ranks. `ready`: exists while this rank trains."""
        self._files, self._ready = files, ready
        self._is_stopped = False
        self._began = 0.0
        self._first = self._next = 0

    def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        if self._ready is not None:
            with suppress(OSError):  # this rank cannot see its launcher's folder
                self._ready.touch()
        self._began, self._first, self._next = time.monotonic(), state.global_step, state.global_step + 1

    def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        step = state.global_step
        if step < self._next or step >= state.max_steps:
            return
        seconds = (time.monotonic() - self._began) / (step - self._first)
        found, speeds = zip(*gather((any(file.exists() for file in self._files), seconds)))
        self._next = step + steps_within(CHECK_SECONDS, speeds)
        if any(found):
            self._is_stopped = control.should_save = control.should_training_stop = True

    def on_save(self, args: Any, _state: Any, _control: Any, **_: Any) -> None:
        if self._is_stopped:  # the run will be resumed: at its end, Trainer must not delete the new checkpoint
            args.load_best_model_at_end, args.save_total_limit = False, None

    def on_epoch_end(self, _args: Any, _state: Any, control: Any, **_: Any) -> None:
        if self._is_stopped:  # the checkpoint exists, and an evaluation may take longer than there is time
            control.should_evaluate = control.should_save = False

    def end(self, rank: int) -> bool:
        """Delete the files. Returns whether one of them has stopped the training. A collective."""
        if self._ready is not None:
            with suppress(OSError):
                self._ready.unlink()
        if rank == 0:
            for file in self._files:
                file.unlink(missing_ok=True)
        gather(None)  # a launcher may end rank 0 as soon as another rank has ended
        return self._is_stopped
