"""Record the loss of every step, averaged over the ranks. Checkpoints include the recorded losses."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from cpu_train_stack.speed.step_clock import StepClock


def mean_over_ranks(values: list[float]) -> list[float]:
    """The element-wise mean over all ranks. A collective: the number of values must be the same on every rank."""
    if not values or not dist.is_initialized() or dist.get_world_size() == 1:
        return values
    tensor = torch.tensor(values, dtype=torch.float32)
    dist.all_reduce(tensor)
    return [float(value) for value in tensor / dist.get_world_size()]


class Losses(TrainerCallback, ExportableState):
    """`losses`: the mean training loss of each optimizer step since the first step of the run.

    Losses stay on their rank until the next log or checkpoint: a collective in each step would add latency.
    """

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock
        self.losses: list[float] = []
        self._local: list[float] = []

    def restore(self, state: Any) -> None:
        """Restore the losses of the steps before a checkpoint. `state`: the TrainerState of the checkpoint."""
        kept = state.stateful_callbacks.get(type(self).__name__, {})
        self.losses = list(kept.get("attributes", {}).get("losses", []))[: state.global_step]

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.restore(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._local.append(self._clock.loss)
        if control.should_log:
            self.reduce()

    def reduce(self, *args: Any, **kwargs: Any) -> None:
        """Add the losses since the last call to `losses`. A collective."""
        self.losses += [round(value, 6) for value in mean_over_ranks(self._local)]
        self._local = []

    on_train_end = reduce

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"losses": self.losses}}
