"""What a resumed run does not take from its checkpoint: intervals, the path of the best checkpoint, the epochs.

It also gives the rows of a resumed run the same random parts as those of the uninterrupted run.
"""

from __future__ import annotations

import functools
import math
import pickle
import re
import struct
import zipfile
from pathlib import Path
from typing import Any, Callable

from transformers import TrainerCallback, TrainerState, TrainingArguments

from cpu_train_stack.cli.errors import UsageError, short_line
from cpu_train_stack.group.create import agreement, gather
from cpu_train_stack.train.output.integrity import STATE, refused

# A share of the epochs: the last step of an epoch may have fewer rows.
_TOLERANCE = 0.02
# The tensors of torch's optimizers that have their parameter's shape.
_LIKE_PARAMETER = frozenset({"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "sum"})
# What Python, pickle and torch raise for wrong content, and torch's messages for it.
_CONTENT_ERRORS = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, EOFError),
    *(RecursionError, pickle.PickleError, struct.error, zipfile.BadZipFile),
)
_OF_CONTENT = re.compile(
    r"PytorchStreamReader|state[ _]dict|RNG state|record size|storage|corrupt|magic number|size mismatch"
    r"|mismatched_sizes|size of tensor|invalid for input of size"
)
# The parts of such messages if reading failed, or memory is short.
_OF_SYSTEM = re.compile(r"file (open|read|seek|stat) failed|[Aa]lloc|[Ii]nput/output error|peer")


class IntervalsOfFlags(TrainerCallback):
    """Set the intervals for logging, evaluation and saving from the flags: a checkpoint restores those of its
    run. An interval below 1 is a share of all steps."""

    def on_train_begin(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        for name in ("logging_steps", "eval_steps", "save_steps"):
            steps = getattr(args, name)
            if steps is not None:  # transformers 4.46 has no function for this
                setattr(state, name, steps if steps >= 1 else math.ceil(steps * state.max_steps))


class BestCheckpoint(TrainerCallback):
    """Set the path of the best checkpoint: Trainer takes it from the checkpoint, and drops a path that is gone."""

    def __init__(self, path: str | None) -> None:
        self._path = path

    def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        state.best_model_checkpoint = self._path


class BeginEpochs(TrainerCallback):
    """At the start of each epoch, call the method `begin_epoch(seed, epoch)` of training data that has it.

    Such data draw the random parts of their rows from these numbers. Data loading processes that outlive an epoch
    (--dataloader_persistent_workers) would not receive the next number, so the method is not called with them.
    """

    def __init__(self, rows: Any) -> None:
        self._begin = getattr(rows, "begin_epoch", None)
        self._epoch: int | None = None

    def on_epoch_begin(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        # Counted: with accumulated batches that do not divide an epoch, older releases end the first one at 0.8.
        self._epoch = int(state.epoch or 0) if self._epoch is None else self._epoch + 1
        if self._begin is not None and not args.dataloader_persistent_workers:
            self._begin(args.seed, self._epoch)


_Load = Callable[..., Any]


def reads(names: str) -> Callable[[_Load], _Load]:
    """For a method that loads the files `names` of a checkpoint: wrong content on any rank is a UsageError on all.

    Other errors stay what they are: a file system, memory or a peer that fails says nothing about the checkpoint,
    and a restart may help.
    """

    def reported(load: _Load) -> _Load:
        @functools.wraps(load)
        def changed(trainer: Any, checkpoint: Any, *arguments: Any, **options: Any) -> Any:
            with agreement():
                try:
                    return load(trainer, checkpoint, *arguments, **options)
                except UsageError:
                    raise
                except Exception as error:
                    if not _is_of_content(error):
                        raise
                    raise refused(checkpoint, f"{names} cannot be loaded ({short_line(error)})") from error

        return changed

    return reported


def _is_of_content(error: Exception) -> bool:
    """Whether the content of a file can have caused the error."""
    if type(error) is RuntimeError:  # torch has no other class for most of its errors
        return _OF_CONTENT.search(str(error)) is not None and _OF_SYSTEM.search(str(error)) is None
    return isinstance(error, _CONTENT_ERRORS) or type(error).__name__ == "SafetensorError"


@reads(STATE)
def state_of(_trainer: Any, checkpoint: Path) -> TrainerState:
    return TrainerState.load_from_json(str(checkpoint / STATE))


def check_optimizer(optimizer: Any) -> None:
    """Raise ValueError if the loaded state belongs to parameters of other shapes, which torch does not compare."""
    for parameter, state in optimizer.state.items():
        for name in _LIKE_PARAMETER & {*state}:
            if state[name] is not None and state[name].numel() != parameter.numel():
                raise ValueError(f"{name} has the shape {[*state[name].shape]}, expected {[*parameter.shape]}")


def best_checkpoint(state: TrainerState, output: Path) -> str | None:
    """Where rank 0 finds the best checkpoint of a checkpoint's run, whose output folder may have had another path.

    None if it no longer exists. A collective.
    """
    best = state.best_model_checkpoint
    places = (output / Path(best).name, Path(best)) if best else ()
    found: str | None = gather(next((str(place) for place in places if place.is_dir()), None))[0]
    return found


def planned_steps(arguments: TrainingArguments, batches: int, counts_rest: bool) -> int:
    """The steps after which Trainer ends the run.

    `batches`: of a rank in an epoch. `counts_rest`: whether Trainer counts the incomplete step at the end of an
    epoch. Older releases take this step without counting it, and end the run earlier.
    """
    if arguments.max_steps > 0:
        return int(arguments.max_steps)
    complete, rest = divmod(batches, arguments.gradient_accumulation_steps)
    per_epoch = max(complete + (counts_rest and rest > 0), 1)
    steps: int = math.ceil(float(arguments.num_train_epochs) * per_epoch)
    return steps


def changed_epochs(state: TrainerState, planned: int, arguments: TrainingArguments) -> str | None:
    """A note if the run will not train for the epochs of its flags: an epoch had another number of steps before.

    Trainer continues at the checkpoint's step. `planned`: the steps of the whole run now.
    """
    epochs = float(arguments.num_train_epochs)
    if arguments.max_steps > 0 or planned == state.max_steps or state.epoch is None or state.epoch >= epochs:
        return None
    found = float(state.epoch) + max(0, planned - state.global_step) * epochs / planned
    if abs(found - epochs) < _TOLERANCE * epochs:
        return None
    return (
        f"the checkpoint's run had {state.max_steps} steps, and this run has {planned}, because ranks, batch size "
        f"or rows differ: it ends after {found:.2f} epochs in all instead of {epochs:g}; --max_steps changes that"
    )


def changed_rows(state: TrainerState, per_epoch: int) -> str | None:
    """A note if the resumed run does not continue at the row where the checkpoint's run stopped.

    `per_epoch`: the steps of an epoch now.
    """
    if state.epoch is None or not state.global_step:
        return None
    now = state.global_step / per_epoch
    # transformers counts batches: with gradient accumulation, its share of the epoch is less than a step away.
    if abs(now - float(state.epoch)) <= max(1 / per_epoch, _TOLERANCE * now):
        return None
    return (
        f"step {state.global_step} is after {state.epoch:.2f} epochs in the checkpoint's run and after {now:.2f} "
        "in this run, because ranks, batch size or rows differ: some rows are trained again or left out"
    )
