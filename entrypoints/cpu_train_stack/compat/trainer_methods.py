"""Subclasses of Trainer, and of what it uses, whose methods have the arguments of transformers 4. Torch-free.

Trainer calls its own methods with arguments that older releases did not have: `save_model` gets _internal_call
since 4.16, `compute_loss` and `training_step` get num_items_in_batch since 4.46, `log` start_time since 4.47, and
`_get_train_sampler` the rows since 4.51. A method of the script that overrides one of them gets only the arguments
that it accepts. The signatures of the installed Trainer decide, so that no list of methods can be out of date. The
same holds for data collators of language models (offset_mapping) and for LabelSmoother (num_items_in_batch).
Calls of Trainer's methods with the arguments of older releases are changed as OLD_CALLS says.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, Callable

from cpu_train_stack import contract
from cpu_train_stack.adapt.adaptation import Situation
from cpu_train_stack.adapt.changes import after_creation, around, before_method
from cpu_train_stack.compat.launcher_variables import is_script

_ITEMS = "num_items_in_batch"
_LIBRARIES = ("transformers.", contract.MODULES)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
# Arguments that older releases had, in their order: a script may call the method with them, also by super(). What
# they lack, `grad_norm` and `start_time`, may be None.
OLD_CALLS = {
    "_maybe_log_save_evaluate": (
        ("tr_loss", "model", "trial", "epoch", "ignore_keys_for_eval"),
        ("tr_loss", "grad_norm", "model", "trial", "epoch", "ignore_keys_for_eval"),
    ),
    "_save_checkpoint": (("model", "trial", "metrics"),),
    "get_batch_samples": (("epoch_iterator", "num_batches"),),
    "set_initial_training_values": (("args", "dataloader", "total_train_batch_size"),),
    "train": (("resume_from_checkpoint", "trial", "ignore_keys_for_eval", "model_path"),),
}
# Arguments at the end that older releases did not have: another parameter at their place is the script's own.
_NEWER = frozenset({_ITEMS, "start_time", "_internal_call"})


def accepted(
    own: inspect.Signature, base: inspect.Signature, args: Any, options: Any
) -> tuple[list[Any], dict[str, Any], list[str]]:
    """The arguments of a call of a method with the signature `base` that an override accepts, and the other names.

    `own`: of the override. Arguments have the same name, or the same place if the override renames them. Raises
    TypeError if the call does not fit `base`.
    """
    given = dict(base.bind(*args, **options).arguments)
    given.update(given.pop("kwargs", {}))
    names = list(base.parameters)
    kept: list[Any] = []
    named: dict[str, Any] = {}
    for place, (name, parameter) in enumerate(own.parameters.items()):
        there = names[place] if place < len(names) and names[place] not in own.parameters else name
        source = name if name in given or _is_another(parameter, there) else there
        if parameter.kind is parameter.VAR_KEYWORD:
            named.update(given)
            given = {}
        elif parameter.kind is parameter.VAR_POSITIONAL:
            kept += [given.pop(other) for other in names[len(kept) : len(args)]]
        elif source not in given:
            continue
        elif parameter.kind in _POSITIONAL and len(kept) == place:
            kept.append(given.pop(source))
        else:
            named[name] = given.pop(source)
    return kept, named, list(given)


def _is_another(parameter: inspect.Parameter, name: str) -> bool:
    """Whether a parameter of an override has nothing to do with the newer argument `name` at its place."""
    shared = set(parameter.name.split("_")) & set(name.split("_")) - {""}
    return name in _NEWER and not shared and parameter.default is not parameter.empty


def _is_scripts_call(frame: FrameType | None) -> bool:
    """Whether the script's own code calls a method, also through an adaptation that replaces it in the object."""
    while frame is not None and f"{frame.f_globals.get('__name__')}.".startswith(contract.MODULES):
        frame = frame.f_back
    return is_script(frame)


def _accepts_all(own: inspect.Signature, base: inspect.Signature) -> bool:
    names = [name for name, parameter in base.parameters.items() if parameter.kind in _POSITIONAL]
    return _fits(own, names, {}) and _fits(own, names[:1], dict.fromkeys(names[1:]))


def renamed_call(base: inspect.Signature, old: tuple[str, ...], args: Any, options: Any) -> dict[str, Any] | None:
    """The arguments of a call with an old signature, by the names of `base`, without self. None if it is none."""
    if len(args) > len(old) or not {*options} <= {*old[len(args) :]}:
        return None
    given = {**dict(zip(old, args)), **options}
    if given.get("model_path") is not None:  # until 3.2; then deprecated, until 5.0
        given.setdefault("resume_from_checkpoint", given["model_path"])
    parameters = list(base.parameters.values())[1:]
    needed = {one.name: None for one in parameters if one.default is one.empty and one.kind in _POSITIONAL}
    known = {one.name for one in parameters}
    return {**needed, **{name: value for name, value in given.items() if name in known}}


def _accept_old_calls(situation: Situation, owner: Any, name: str) -> None:
    if not hasattr(owner, name):
        return
    base = inspect.signature(getattr(owner, name))

    @around(owner, name)
    def call(original: Any, self: Any, *args: Any, **options: Any) -> Any:
        if not _fits(base, (self, *args), options):
            found = (renamed_call(base, old, args, options) for old in OLD_CALLS[name])
            given = next((one for one in found if one is not None), None)
            if given is not None:
                situation.report(f"Trainer.{name} is called with the arguments of an older transformers")
                given.update({"device": self.args.device} if "device" in given else {})
                return original(self, **given)
        return original(self, *args, **options)


def _fits(signature: inspect.Signature, args: Any, options: Any) -> bool:
    try:
        signature.bind(*args, **options)
    except TypeError:
        return False
    return True


def _signature(function: Any, name: str) -> inspect.Signature:
    """The signature of a method with this name. A decorator without functools.wraps accepts all arguments."""
    own = inspect.signature(function)
    if any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in own.parameters.values()):
        for cell in getattr(function, "__closure__", None) or ():
            with contextlib.suppress(ValueError):  # an empty cell
                inner = cell.cell_contents
                if inspect.isfunction(inner) and inner.__name__ == name:
                    return inspect.signature(inner)
    return own


def fitted(function: Any, base: inspect.Signature, report: Callable[[list[str]], None], name: str = "") -> Any:
    """`function`, or a function that drops the arguments that it does not accept.

    `base`: the signature of Trainer's own method. `report`: gets the names of what is dropped. `name`: of the
    method. A call that fits the function is not changed.
    """
    try:
        own = _signature(function, name)
    except (TypeError, ValueError):
        return function
    if _accepts_all(own, base):
        return function
    pairs = list(zip(own.parameters.values(), base.parameters))
    has_another = any(one.kind in _POSITIONAL and _is_another(one, name) for one, name in pairs)

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        # A script's own call may fit neither: then Python's message is about its function.
        is_meant = not has_another or _is_scripts_call(sys._getframe(1))
        if (is_meant and _fits(own, args, options)) or not _fits(base, args, options):
            return function(*args, **options)
        kept, named, dropped = accepted(own, base, args, options)
        report(dropped)
        return function(*kept, **named)

    return call


class _Overrides:
    """The methods of a class that scripts override. `bases`: the signatures of its own."""

    def __init__(self, situation: Situation, trainer: Any) -> None:
        self.situation = situation
        self.trainer = trainer
        functions = {name: getattr(value, "__func__", value) for name, value in vars(trainer).items()}
        self.bases = {
            name: inspect.signature(function)
            for name, function in functions.items()
            if inspect.isfunction(function) and (name == "__call__" or not name.startswith("__"))
        }
        self.fitted: set[Any] = set()

    def fit(self, trainer: Any, _options: object = None) -> None:
        """Before Trainer's __init__ and train: fit the methods of the classes of a trainer, and its own ones."""
        for owner in type(trainer).__mro__:
            for name, function in own_functions(owner):
                if name not in self.bases or function in self.fitted:
                    continue
                is_static = isinstance(vars(owner)[name], staticmethod)
                changed = fitted(function, self.bases[name], self._report(owner.__name__, name), name)
                self.fitted |= {function, changed}
                if changed is not function:
                    setattr(owner, name, staticmethod(changed) if is_static else changed)
        for name, _ in own_functions(trainer):
            if name in self.bases:
                base = self.bases[name]
                if not isinstance(vars(self.trainer)[name], staticmethod):
                    base = base.replace(parameters=list(base.parameters.values())[1:])
                setattr(trainer, name, fitted(vars(trainer)[name], base, self._report("trainer", name), name))

    def _report(self, owner: str, name: str) -> Callable[[list[str]], None]:
        def report(dropped: list[str]) -> None:
            text = f"it gets no {', '.join(dropped)}" if dropped else "it gets them by their places"
            self.situation.report(f"{owner}.{name} has the arguments of an older transformers: {text}")

        return report

    def stop_scaling(self, trainer: Any) -> None:
        """Trainer leaves the division by the accumulation steps to a loss that gets the number of items."""
        loss = inspect.signature(type(trainer).compute_loss).parameters
        takes_rest = any(one.kind is one.VAR_KEYWORD for one in loss.values())
        if _ITEMS not in loss and not takes_rest and hasattr(trainer, "model_accepts_loss_kwargs"):
            trainer.model_accepts_loss_kwargs = False


def own_functions(owner: Any) -> Iterator[tuple[str, Any]]:
    """The functions among the attributes of a class or an object that are the script's, not of transformers."""
    for name, value in list(vars(owner).items()):
        is_partial = isinstance(value, functools.partialmethod)
        function = value.__get__(None, owner) if is_partial else getattr(value, "__func__", value)
        if not inspect.isfunction(function) or isinstance(value, classmethod):
            continue
        if not f"{inspect.unwrap(function).__module__}.".startswith(_LIBRARIES):
            yield name, function


def hook_trainer(situation: Situation, module: Any) -> None:
    for name in OLD_CALLS:
        _accept_old_calls(situation, module.Trainer, name)
    overrides = _Overrides(situation, module.Trainer)
    for name in ("__init__", "train"):
        before_method(module.Trainer, name, overrides.fit)
    after_creation(module.Trainer, overrides.stop_scaling)
    smoothers = _Overrides(situation, module.LabelSmoother)

    def fit_smoother(trainer: Any, _options: object) -> None:
        if isinstance(trainer.label_smoother, module.LabelSmoother):
            smoothers.fit(trainer.label_smoother)

    before_method(module.Trainer, "train", fit_smoother)


def hook_collators(situation: Situation, module: Any) -> None:
    base, known = module.DataCollatorForLanguageModeling, set()
    overrides = _Overrides(situation, base)

    def fit(collator: Any, _options: object) -> None:
        if isinstance(collator, base) and type(collator) not in known:
            known.add(type(collator))
            overrides.fit(collator)

    before_method(module.DataCollatorMixin, "__call__", fit)
