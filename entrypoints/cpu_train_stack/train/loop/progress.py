"""Progress on rank 0: a bar on a terminal, lines in a log."""

from __future__ import annotations

import sys
from typing import Any

from transformers import TrainerCallback

from cpu_train_stack.cli.say import say
from cpu_train_stack.speed.step_clock import StepClock
from cpu_train_stack.train.loop.speed import Speed, progress_line


class Progress(TrainerCallback):
    """Prints on rank 0 only. `speed`: complete after the training."""

    def __init__(self, clock: StepClock, world_size: int) -> None:
        self._clock = clock
        self.speed = Speed(world_size)
        self._world_size = world_size
        self._bar: Any = None
        self._logged = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._logged = state.global_step
        if not state.is_world_process_zero:
            return
        if sys.stderr.isatty():
            from tqdm.auto import tqdm

            self._bar = tqdm(
                total=state.max_steps, initial=state.global_step, dynamic_ncols=True, unit="step", file=sys.stderr
            )
        else:
            begin = f" from step {state.global_step}" if state.global_step else ""
            say(f"training: {state.max_steps} steps{begin}, ranks: {self._world_size}")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.speed.add(self._clock.seconds, self._clock.rows)
        if self._bar is not None:
            self._bar.update(1)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if not state.is_world_process_zero or not logs or "loss" not in logs:
            return
        rate = self.speed.rate(last=max(1, state.global_step - self._logged))
        self._logged = state.global_step
        line = progress_line(state.global_step, state.max_steps, logs, rate)
        if self._bar is not None:
            self._bar.set_postfix_str(line.split("  ", 1)[-1])
        else:
            say(line)

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: dict[str, float] | None = None, **kwargs: Any
    ) -> None:
        if not state.is_world_process_zero or not metrics:
            return
        shown = "  ".join(
            f"{name[5:]} {value:.4f}"
            for name, value in metrics.items()
            if name.startswith("eval_")
            and name not in ("eval_runtime", "eval_samples", "eval_model_preparation_time")
            and not name.endswith("per_second")
        )
        line = f"evaluation at step {state.global_step}  {shown}  ({metrics.get('eval_samples', 0):.0f} rows)"
        if self._bar is not None:
            self._bar.write(line, file=sys.stderr)
        else:
            say(line)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
