"""Measures what each step of a Trainer takes, per rank, and records it in the output folder (`records`)."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import torch
from torch.autograd import Variable
from transformers import TrainerCallback

from cpu_train_stack.adapt.adaptation import Situation
from cpu_train_stack.adapt.changes import after_creation
from cpu_train_stack.records import origin, writer
from cpu_train_stack.records.counters import Counters, most_delayed
from cpu_train_stack.records.record import Event, Log, Steps, summed
from cpu_train_stack.records.tokens import Count, count
from cpu_train_stack.records.writer import Writer
from cpu_train_stack.speed import joining


class _Waits:
    """What this process has waited in collectives that a backward pass calls itself.

    `delays`: Counters.delays in a step that measures `delayed`, otherwise None. `before`: what it returned at the
    beginning of the batch, plus what it grew while waiting.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.delays: Callable[[], dict[str, float]] | None = None
        self.before: dict[str, float] = {}


_WAITS = _Waits()
_ATTRIBUTE = "_cpu_train_stack_clock"  # of a Trainer


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Count the time inside the block as waiting for other ranks, not as computing."""
    delays = _WAITS.delays or dict
    began, before = time.perf_counter(), delays()
    try:
        yield
    finally:
        _WAITS.seconds += time.perf_counter() - began
        for thread, delay in delays().items():
            _WAITS.before[thread] = _WAITS.before.get(thread, delay) + delay - before.get(thread, delay)


class StepClock:
    """Measures the parts of each step of one Trainer. A step begins with reading its rows.

    `forward`, `backward` and the other fields: seconds of the current step. `tokens`: since the process began.
    """

    def __init__(self, trainer: Any) -> None:
        self.tokens = Count()
        self._read = trainer.get_batch_samples
        self._train = trainer.training_step
        self._compute_loss = trainer.compute_loss
        self._log = trainer.log
        self._trainer = trainer
        self._since_log: Steps | None = None
        trainer.get_batch_samples = self.get_batch_samples
        trainer.training_step = self.training_step
        trainer.compute_loss = self.compute_loss
        trainer.log = self.log
        self._in_step = False
        self._began = self._read_rows = self._computed = self._differentiated = 0.0
        self._done: Count = self.tokens
        self.reset()

    def reset(self) -> None:
        """Forget the current step."""
        self.forward = self.backward = self.wait = self.read = self.loss = 0.0
        self.delayed: float | None = None
        self._began = self._mark = time.perf_counter()
        self._done = self.tokens

    @property
    def seconds(self) -> float:
        """The time since the current step began."""
        return time.perf_counter() - self._began

    @property
    def rows(self) -> int:
        """The rows of the current step on this rank."""
        return self.tokens.rows - self._done.rows

    def log(self, logs: dict[str, Any], *arguments: Any, **options: Any) -> Any:
        """Trainer's method. TensorBoard, MLflow and others get the figures of rank 0 next to the loss."""
        if "loss" in logs and self._since_log is not None:
            logs = {**logs, **figures(self._since_log, self._trainer.args.world_size)}
        self._since_log = None
        return self._log(logs, *arguments, **options)

    def end(self, step: int, now: float) -> Steps:
        """The current step, which ends here. `now`: seconds since the epoch."""
        end = time.perf_counter()
        tokens = self.tokens
        seconds = round(end - self._began, 6)
        found = Steps(
            time=round(now, 3),
            step=step,
            steps=1,
            seconds=seconds,
            forward=round(self.forward, 6),
            backward=round(self.backward, 6),
            wait=round(self.wait, 6),
            read=round(self.read, 6),
            optimizer=round(end - self._mark, 6),
            longest=seconds,
            rows=self.rows,
            computed=tokens.computed - self._done.computed,
            useful=tokens.useful - self._done.useful,
            loss=round(self.loss, 6),
        )
        if self._trainer.args.report_to:
            self._since_log = found if self._since_log is None else summed([self._since_log, found])
        return found

    def get_batch_samples(self, batches: Any, *arguments: Any, **options: Any) -> Any:
        """Trainer's method: reads the batches of a step, and then asks the other ranks for their counts."""
        self.reset()
        found = self._read(self._timed(batches), *arguments, **options)
        self._mark = time.perf_counter()
        self.wait += self._mark - self._began - self.read
        return found

    def _timed(self, batches: Any) -> Iterator[Any]:
        while True:
            began = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                return
            finally:
                self.read += time.perf_counter() - began
            yield batch

    def training_step(self, model: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        """Trainer's method: forward and backward of one batch. DDP's reductions end in the backward."""
        skipped = joining.skipped()
        counted = _count(inputs)
        waited = _WAITS.seconds
        if _WAITS.delays is not None:
            _WAITS.before = _WAITS.delays()
        began = self._computed = self._differentiated = time.perf_counter()
        self._in_step = True
        try:
            loss = self._train(model, inputs, *arguments, **options)
        finally:
            self._in_step = False
        self._mark = time.perf_counter()
        self.forward += self._computed - began
        waited = _WAITS.seconds - waited
        self.backward += self._differentiated - self._computed - waited
        self.wait += self._mark - self._differentiated + waited
        self.tokens += counted.without(joining.skipped() - skipped)
        self.loss += float(loss) if isinstance(loss, torch.Tensor) and loss.numel() == 1 else math.nan
        return loss

    def compute_loss(self, *arguments: Any, **options: Any) -> Any:
        """Trainer's method: the forward. Notes when the gradients of the loss are complete on this rank."""
        found = self._compute_loss(*arguments, **options)
        loss = found[0] if isinstance(found, tuple) else found
        if self._in_step:
            self._computed = self._differentiated = time.perf_counter()
            if getattr(loss, "requires_grad", False):
                loss.register_hook(self._backward_began)
        return found

    def _backward_began(self, _gradient: Any) -> None:
        # The engine calls these in the order in which they were queued. DDP queues its own, which waits for the
        # reductions, later: when its last gradient is complete.
        Variable._execution_engine.queue_callback(self._backward_ended)

    def _backward_ended(self) -> None:
        self._differentiated = time.perf_counter()
        if _WAITS.delays is not None:
            self.delayed = (self.delayed or 0.0) + most_delayed(_WAITS.before, _WAITS.delays())


def clock_of(trainer: Any) -> StepClock:
    """The clock of a Trainer, which gets one the first time."""
    if not hasattr(trainer, _ATTRIBUTE):
        setattr(trainer, _ATTRIBUTE, StepClock(trainer))
    clock: StepClock = getattr(trainer, _ATTRIBUTE)
    return clock


def _class(model: Any) -> str:
    """The name of the model's class, of the model below an adapter."""
    return type(model.get_base_model() if hasattr(model, "get_base_model") else model).__name__


def _count(inputs: Any) -> Count:
    """The rows and tokens of a script's inputs, which may be of any kind."""
    try:
        return count(inputs)
    except (AttributeError, TypeError, RuntimeError):
        return Count()


def figures(steps: Steps, world_size: int) -> dict[str, float]:
    """What the steps of this rank took, by the names under which other tools get it: seconds and tokens."""
    found = {
        "step_seconds": steps.seconds / steps.steps,
        "step_waiting_seconds": steps.wait / steps.steps,
        "step_reading_seconds": steps.read / steps.steps,
        "samples_per_second": steps.rows * world_size / steps.seconds,
    }
    if steps.useful:
        found["tokens_per_second"] = steps.useful * world_size / steps.seconds
    return {name: round(value, 4) for name, value in found.items()}


class StepRecorder(TrainerCallback):
    """Writes the records of one Trainer while it trains. `hook` attaches it to Trainers."""

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock
        self._counters = Counters(())
        self._writer: Writer | None = None
        self._between = 0.0  # when the training began, or the last step, checkpoint or evaluation ended

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        rows = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        start = origin.start(
            threads=torch.get_num_threads(),
            config=args.to_dict(),
            model=_class(kwargs.get("model")),
            first_step=state.global_step,
            last_step=state.max_steps,
            rows_per_step=rows,
        )
        self._counters = Counters(start.cores, origin.numa_nodes())
        self._writer = writer.begin(Path(args.output_dir), start)
        self._sample(state.global_step)
        self._between = time.perf_counter()
        self._clock.reset()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._writer is None:
            return
        self._writer.add(self._clock.end(state.global_step, time.time()))
        if _WAITS.delays is not None:
            self._sample(state.global_step)
        _WAITS.delays = self._counters.delays if self._writer.wants_sample() else None
        self._between = time.perf_counter()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if self._writer is not None and state.is_world_process_zero:
            values = {
                name: float(value) for name, value in (logs or {}).items() if isinstance(value, (int, float))
            }
            self._writer.add(Log(round(time.time(), 3), state.global_step, values))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._event("checkpoint", state.global_step)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._event("evaluation", state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._writer is not None:
            self._sample(state.global_step)
            self._writer.flush()

    def _event(self, name: str, step: int) -> None:
        now = time.perf_counter()
        if self._writer is not None:
            self._writer.add(Event(round(time.time(), 3), step, name, round(now - self._between, 3)))
        self._between = now

    def _sample(self, step: int) -> None:
        if self._writer is not None:
            self._writer.add(self._counters.sample(step, self._clock.delayed))


def hook(_situation: Situation, module: Any) -> None:
    """Record the steps of every Trainer. `module`: transformers.trainer."""
    after_creation(module.Trainer, lambda trainer: trainer.add_callback(StepRecorder(clock_of(trainer))))
