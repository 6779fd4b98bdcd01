"""Let Trainer scale every part of a loss rightly: what the number of labels divides, and what it does not.

Trainer counts the labels of all ranks and accumulation steps, and passes the count on as `num_items_in_batch`. If
the model's forward has **kwargs, or the script has a `compute_loss_func`, Trainer assumes that the count divides
the loss: it multiplies the loss by the ranks, and does not divide it by the steps. Whatever the count does not
divide is then too large by ranks x steps: the loss of a classifier's head (huggingface/transformers#47688), a
script's own mean, the router's loss of a mixture of experts, the regularization of AdaLoRA.

A loss is sum / count + rest. Here the loss gets the count of one rank and step on average, which is the count
divided by ranks x steps. Trainer does not multiply by the ranks, and always divides by the steps. The sum's share
remains the same, and the rest becomes a mean, no matter which code computes them.

A `training_step` of the script's own may be a copy of an older Trainer's. Before 4.46, accelerate's backward
divided by the steps. Later copies read `model_accepts_loss_kwargs`, as Trainer does.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections.abc import Iterator
from typing import Any

from cpu_train_stack.adapt.adaptation import Situation
from cpu_train_stack.adapt.changes import after_creation, around, before_method, is_compiled
from cpu_train_stack.compat.loss_code import attributes, loss_functions, names, own_method

_ITEMS = "num_items_in_batch"
_ATTRIBUTE = "_cpu_train_stack_scale"  # of a Trainer, and of the steps that respect it
_OVER_RANKS = "average_tokens_across_devices"
_RANKS = frozenset({"num_processes", "world_size", "get_world_size"})
_STEPS = frozenset({"gradient_accumulation_steps", "current_gradient_accumulation_steps"})
_WHOLE = frozenset({"int", "long"})  # what makes a whole number of a count
# What this adaptation replaces in Trainer's own code: a later release may decide otherwise.
_ACCEPTS = "model_accepts_loss_kwargs"
_READ = {"training_step": {_ACCEPTS, "compute_loss_func"}, "compute_loss": {_OVER_RANKS}}
_FLOAT32 = 4  # bytes
_AS_IT_IS = (
    "Trainer does not divide it by the accumulation steps; if it has to, set loss_is_scaled_for_ga = False in the "
    "trainer"
)
_AS_ITS_OWN = (
    f"does not read {_ACCEPTS}, so it may scale the loss itself: nothing else divides by the accumulation steps"
)
_TIMES_RANKS = (
    f"Trainer multiplies what it computes of it by {{ranks}} ranks; if it must not, pass {_OVER_RANKS}=False to "
    "TrainingArguments"
)


class _Scale:
    """Gives a Trainer's loss the count of one rank, and inside `training_step` the count of one step."""

    def __init__(self, trainer: Any, situation: Situation) -> None:
        self._trainer = trainer
        self._situation = situation
        self._is_running = False
        self._refuses_count = False
        self._cuts_count = False
        self._steps: int | None = None
        self._replaced: Any = None
        self._loss: Any = None
        self._wrap()

    def _wrap(self) -> None:
        """Replace the Trainer's method. Again, if the script or another adaptation has replaced it meanwhile."""
        own = self._trainer.compute_loss
        if own is self._replaced:
            return

        @functools.wraps(own)
        def compute_loss(*arguments: Any, **options: Any) -> Any:
            return own(*arguments, **options) if self._is_running else self._compute(own, *arguments, **options)

        self._trainer.compute_loss = self._replaced = compute_loss

    def _compute(self, own: Any, model: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        """`options` have the count of all ranks and steps."""
        trainer, count = self._trainer, options.get(_ITEMS)
        ranks, steps = self._ranks(count), self._steps or 1
        part = factor = None
        if count is not None and ranks * steps > 1:
            part = self._share(model, count, ranks * steps)
            options[_ITEMS], factor = self._whole(part) if self._cuts_count else (part, None)
            self._report("the loss has the same scale with any number of ranks and accumulation steps")
        kept = copy.copy(inputs)
        loss = self._own_loss(own, ranks, model, inputs, *arguments, **options)
        if getattr(part, "is_cut", False) and not self._cuts_count:
            self._cuts_count = True
            self._report("the loss is computed for a whole number of labels, and scaled to their share")
            options[_ITEMS], factor = self._whole(part)
            loss = self._own_loss(own, ranks, model, kept, *arguments, **options)
        if factor is not None:
            loss = (loss[0] * factor, *loss[1:]) if isinstance(loss, (tuple, list)) else loss * factor
        if self._steps is not None:  # so that Trainer divides by the steps; `step` restores them
            trainer.model_accepts_loss_kwargs = False
            trainer.compute_loss_func = None
        first = loss[0] if isinstance(loss, (tuple, list)) and loss else loss
        self._loss = first.detach() if hasattr(first, "detach") else None
        return loss

    def _share(self, model: Any, count: Any, parts: int) -> Any:
        """The count of one rank and step. torch.compile would not know the class LabelCount."""
        from cpu_train_stack.compat import loss_count

        may_cut = any(_WHOLE & names(function) for _, function in loss_functions(self._trainer))
        if may_cut and any(map(is_compiled, model.modules())):
            self._report(f"a compiled model: {_ITEMS} has a fraction, which int() cuts off: divide by it as it is")
            may_cut = False
        if not may_cut:
            return count / parts
        return loss_count.share(count, parts)

    @staticmethod
    def _whole(part: Any) -> tuple[Any, float]:
        """A whole number of labels, and the factor that gives the loss of `part` labels."""
        from cpu_train_stack.compat import loss_count

        whole = loss_count.nearest(part)
        return whole, float(whole) / float(part)

    def _own_loss(self, own: Any, ranks: int, *arguments: Any, **options: Any) -> Any:
        self._is_running = True
        try:
            with attributes(self._trainer.args, {_OVER_RANKS: False} if ranks > 1 else {}):
                return self._accepted(own, *arguments, **options)
        finally:
            self._is_running = False

    def _accepted(self, own: Any, model: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        """The loss. A forward may have **kwargs, and pass them on to a module that refuses the count."""
        trainer, kept = self._trainer, copy.copy(inputs)  # a script's method may remove the labels
        if not self._refuses_count:
            try:
                return own(model, inputs, *arguments, **options)
            except (TypeError, ValueError) as error:
                if _ITEMS not in str(error) or not trainer.model_accepts_loss_kwargs:
                    raise
        with attributes(trainer, {"model_accepts_loss_kwargs": False}):
            loss = own(model, kept, *arguments, **options)
        self._refuses_count = True
        self._report(f"the model refuses {_ITEMS}, and does not get it")
        return loss

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """While Trainer's `training_step` runs."""
        trainer = self._trainer
        self._wrap()
        divides_already = not trainer.model_accepts_loss_kwargs and trainer.compute_loss_func is None
        is_scaled = getattr(trainer, "loss_is_scaled_for_ga", None) is True  # the script has decided
        steps = self._number_of_steps()
        if divides_already or is_scaled or (steps > 1 and self._is_own(_STEPS, _AS_IT_IS)):
            yield
            return
        self._steps = steps
        restored = ("model_accepts_loss_kwargs", "compute_loss_func")
        try:
            with attributes(trainer, {name: getattr(trainer, name) for name in restored}):
                yield
        finally:
            self._steps = None

    def own_step(self, name: str, function: Any) -> contextlib.AbstractContextManager[None]:
        """While the script's own `training_step` runs. `name`: of the method."""
        trainer, read = self._trainer, names(function)
        steps = self._number_of_steps()
        if _ACCEPTS in read:
            return self.step()
        if steps == 1 or "training_step" in read or getattr(trainer, "loss_is_scaled_for_ga", None) is True:
            return contextlib.nullcontext()  # "training_step": it calls the one of its base
        parameters = inspect.signature(function).parameters.values()
        if any(one.name == _ITEMS or one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL) for one in parameters):
            self._report(f"{name} {_AS_ITS_OWN}")
            return contextlib.nullcontext()
        if self._is_own(_STEPS, _AS_IT_IS.format(steps=steps)):
            return contextlib.nullcontext()
        self._wrap()
        accelerator = trainer.accelerator
        own = accelerator.backward

        def backward(loss: Any, *arguments: Any, **options: Any) -> None:
            # If the script's step has called Trainer's own step, that has already divided the loss.
            is_divided = self._steps is not None or (bool(_STEPS & read) and self._is_part(loss.detach()))
            if not is_divided:
                self._report(f"{name} is older than transformers 4.46: backward divides by accumulation steps")
            own(loss if is_divided else loss / steps, *arguments, **options)

        return attributes(accelerator, {"backward": backward})

    def _is_part(self, loss: Any) -> bool:
        """Whether the script has divided its last loss by the accumulation steps.

        The last update of an epoch may have fewer steps than the argument says: a script may divide by either.
        """
        last = self._loss
        if last is None:
            return False
        tolerance = 1e-5 if loss.dtype == last.dtype and loss.element_size() >= _FLOAT32 else 1e-2
        steps = {self._number_of_steps(), int(self._trainer.args.gradient_accumulation_steps)} - {1}
        return any(bool((loss.float() * number).isclose(last.float(), rtol=tolerance).all()) for number in steps)

    def _number_of_steps(self) -> int:
        trainer = self._trainer
        steps = getattr(trainer, "current_gradient_accumulation_steps", trainer.args.gradient_accumulation_steps)
        return int(steps)

    def _ranks(self, count: Any) -> int:
        """By how many ranks Trainer multiplies a loss, 1 if the script does so itself."""
        trainer = self._trainer
        ranks: int = trainer.accelerator.num_processes
        if count is None or ranks == 1 or not getattr(trainer.args, _OVER_RANKS, False):
            return 1
        return 1 if self._is_own(_RANKS, _TIMES_RANKS.format(ranks=ranks)) else ranks

    def _is_own(self, wanted: frozenset[str], consequence: str) -> bool:
        """Whether the script's code for the loss reads one of these names: it may scale the loss itself."""
        for name, function in loss_functions(self._trainer):
            read = names(function)
            if _OVER_RANKS in read and wanted is _RANKS:
                continue  # a copy of Trainer's method, which does what the argument says
            if found := sorted(wanted & read):
                self._report(f"{name} reads {found[0]}, so it may scale the loss itself: {consequence}")
                return True
        return False

    def _report(self, line: str) -> None:
        self._situation.report(line)


def _in_own_step(name: str, function: Any, owner: Any) -> Any:
    """The script's `training_step`, inside the scale of its trainer: `owner`, or the first argument."""

    @functools.wraps(function)
    def training_step(*arguments: Any, **options: Any) -> Any:
        scale = getattr(arguments[0] if owner is None else owner, _ATTRIBUTE, None)
        with contextlib.nullcontext() if scale is None else scale.own_step(name, function):
            return function(*arguments, **options)

    setattr(training_step, _ATTRIBUTE, True)
    return training_step


def _cover_steps(trainer: Any, _options: object = None) -> None:
    """Before training: the script's `training_step` of its classes, in Trainer's place, and of the object."""
    for owner in (trainer, *type(trainer).__mro__):
        own = own_method(owner, "training_step")
        if own is not None and not hasattr(own, _ATTRIBUTE) and (owner is trainer or inspect.isfunction(own)):
            name = f"{getattr(owner, '__name__', 'trainer')}.training_step"
            owner.training_step = _in_own_step(name, own, trainer if owner is trainer else None)


def unknown_code(trainer: Any) -> set[str]:
    """The methods of the class Trainer whose code no longer reads what this adaptation replaces."""
    return {name for name, read in _READ.items() if not read <= names(getattr(trainer, name))}


def hook(situation: Situation, module: Any) -> None:
    trainer = module.Trainer
    if _ITEMS not in inspect.signature(trainer.compute_loss).parameters:
        return  # before transformers 4.46, no count divides the loss
    if missing := unknown_code(trainer):
        situation.report(f"unknown code in Trainer.{', '.join(sorted(missing))}: the loss stays as it is")
        return

    def install(new: Any) -> None:
        from cpu_train_stack.compat import loss_count

        setattr(new, _ATTRIBUTE, _Scale(new, situation))
        _cover_steps(new)
        loss_count.count_as_the_inner_model(new)

    @around(trainer, "training_step")
    def training_step(original: Any, self: Any, *arguments: Any, **options: Any) -> Any:
        scale = getattr(self, _ATTRIBUTE, None)  # None for a subclass that does not call Trainer's __init__
        with contextlib.nullcontext() if scale is None else scale.step():
            return original(self, *arguments, **options)

    after_creation(trainer, install)
    before_method(trainer, "train", _cover_steps)
