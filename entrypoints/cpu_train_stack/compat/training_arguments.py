"""Accept old flags of TrainingArguments on the command line, in a configuration file, and in a call.

transformers 5 refuses fields that older releases had deprecated: no_cuda, evaluation_strategy,
overwrite_output_dir and others (huggingface/transformers#41017, #41323, #41404). 5.1 removed `ccl` from the
choices of --ddp_backend, and accelerate 1.13 refuses that name in every place. Only parsers of TrainingArguments
are changed, and only for flags that they do not know: a script may have its own --no_cuda. Scripts can also read
and set the removed fields.

transformers 4 set local_rank to the rank's own, 5 leaves -1 on every rank (huggingface/transformers#41382):
scripts that write files on "the main process" would do so on every rank, or on none.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cpu_train_stack import contract
from cpu_train_stack.adapt.adaptation import Situation
from cpu_train_stack.adapt.changes import around, before_method
from cpu_train_stack.compat.flags import FLAGS, OldFlag
from cpu_train_stack.compat.launcher_variables import is_script
from cpu_train_stack.compat.rewriting import Found, rewrite, rewrite_fields

_BASE = "TrainingArguments"
_HOOKED = "_cpu_train_stack_old_fields"  # an attribute of a class
# By the name of the adaptation.
OLD_FIELDS = {flag.adaptation: flag for flag in FLAGS if flag.gone}
# The flags to replace. Each adaptation adds its flag when it hooks the first module.
_ACTIVE: dict[str, OldFlag] = {}
# Old fields whose new fields have the same values.
_RENAMED = frozenset({"evaluation_strategy", "push_to_hub_token", "push_to_hub_model_id", "torchdynamo"})


def _activate(situation: Situation) -> OldFlag:
    """The flag of the adaptation that gets the situation, from now on active."""
    flag = OLD_FIELDS[situation.name]
    return _ACTIVE.setdefault(flag.name, flag)


def _unknown_to(known: Iterable[str]) -> dict[str, OldFlag]:
    """The active flags that are not in `known`."""
    names = set(known)
    return {name: flag for name, flag in _ACTIVE.items() if name not in names}


def hook_parser(situation: Situation, module: Any) -> None:
    """Rewrite what HfArgumentParser gets, once for all flags. `module`: transformers.hf_argparser."""
    _activate(situation)
    parser = module.HfArgumentParser
    if hasattr(parser, _HOOKED):
        return
    setattr(parser, _HOOKED, True)

    @around(parser, "parse_known_args")
    def parse_known_args(
        parse: Any, self: Any, args: Sequence[str] | None = None, *rest: Any, **options: Any
    ) -> Any:
        given = list(sys.argv[1:] if args is None else args)
        if _holds_training_arguments(self):
            active = _unknown_to(action.dest for action in self._actions)
            # Known flags, of which some values are refused.
            active.update({name: flag for name, flag in _ACTIVE.items() if flag.only})
            given, found = rewrite(given, active)
            _apply(situation, found)
            _remember_parsed(found)
        return parse(self, given, *rest, **options)

    @around(parser, "parse_dict")
    def parse_dict(parse: Any, self: Any, args: Mapping[str, Any], *rest: Any, **options: Any) -> Any:
        if _holds_training_arguments(self):
            args, found = rewrite_fields(args, _unknown_to(action.dest for action in self._actions))
            _apply(situation, found)
            _remember_parsed(found)
        return parse(self, args, *rest, **options)


def _holds_training_arguments(parser: Any) -> bool:
    return any(base.__name__ == _BASE for one in parser.dataclass_types for base in one.__mro__)


def hook_fields(situation: Situation, module: Any) -> None:
    """Calls of the class or of a script's subclass, which no parser sees. `module`: transformers.training_args."""
    flag, arguments = _activate(situation), module.TrainingArguments
    names = {item.name for item in dataclasses.fields(arguments)}
    if not hasattr(arguments, _HOOKED):
        setattr(arguments, _HOOKED, True)
        _hook_calls(situation, arguments, names)
    if flag.name in names:
        return
    setattr(arguments, flag.name, _OldField(situation, flag))
    if flag.name == "warmup_ratio":
        _accept_ratio(arguments)
    if flag.name == "jit_mode_eval":
        for method in ("set_evaluate", "set_testing"):
            _accept_jit_mode(situation, flag, arguments, method)


def _hook_calls(situation: Situation, arguments: Any, names: set[str]) -> None:
    hooked: set[type] = set()

    def create(kind: type, *_values: object, **_options: object) -> Any:
        # @dataclass writes an __init__ for each subclass, which does not call the one of its base.
        for owner in kind.__mro__:
            if "__dataclass_fields__" in vars(owner) and "__init__" in vars(owner) and owner not in hooked:
                hooked.add(owner)
                own = frozenset(item.name for item in dataclasses.fields(owner))
                before_method(owner, "__init__", functools.partial(_rewrite_call, situation, own))
        return object.__new__(kind)

    arguments.__new__ = create
    before_method(arguments, "__post_init__", functools.partial(_replace_values, situation, names))


def _accept_ratio(owner: Any) -> None:
    """Let set_lr_scheduler take warmup_ratio, as in transformers 4."""

    @around(owner, "set_lr_scheduler")
    def set_lr_scheduler(original: Any, self: Any, *args: Any, **options: Any) -> Any:
        is_old = len(args) > 4 or "warmup_steps" in options  # otherwise, both releases agree
        names = ("name", "num_epochs", "max_steps", *(("warmup_ratio",) if is_old else ()), "warmup_steps")
        options.update(zip(names, args))
        ratio = options.pop("warmup_ratio", None)
        original(self, **options)
        if ratio is not None:
            self.warmup_ratio = ratio
        return self


def _accept_jit_mode(situation: Situation, flag: OldFlag, owner: Any, method: str) -> None:
    """Let a method take jit_mode, as in transformers 4, where it was the last parameter."""
    count = len(inspect.signature(getattr(owner, method)).parameters) - 1  # without self

    @around(owner, method)
    def accepting(original: Any, self: Any, *args: Any, **options: Any) -> Any:
        if len(args) == count + 1 and "jit_mode" not in options:
            args, options["jit_mode"] = args[:count], args[count]
        if "jit_mode" in options:
            _apply(situation, [Found(flag, str(options.pop("jit_mode")))])
        return original(self, *args, **options)


class _OldField:
    """A field that TrainingArguments had: the value given, or that of its new name, or the default."""

    def __init__(self, situation: Situation, flag: OldFlag) -> None:
        self.situation, self.flag = situation, flag
        self.is_renamed = flag.name in _RENAMED
        self.value = flag.default

    def __get__(self, owner: Any, kind: object = None) -> Any:
        if owner is None:
            return self.value
        flag, given = self.flag, vars(owner)
        if flag.name in given:
            return given[flag.name]
        frame = sys._getframe(1)
        is_ours = str(frame.f_globals.get("__name__")).startswith(contract.MODULES)
        is_set = not self.is_renamed and self.value != flag.default
        if is_script(frame) and not is_ours and not is_set:
            now = f": the script reads {flag.now}" if self.is_renamed else ", and was not set"
            self.situation.report(f"{_BASE}.{flag.name} was removed{now}")
        if self.is_renamed:
            return getattr(owner, str(flag.now))
        if flag.key:
            config = getattr(owner, str(flag.now), None) or {}
            found = config.get(flag.key) if isinstance(config, dict) else getattr(config, flag.key)
            return self.value if found is None else found
        if flag.variable:
            return os.environ.get(flag.variable, str(Path(owner.output_dir) / "runs"))
        return self.value

    def __set__(self, owner: Any, value: Any) -> None:
        if self.is_renamed:
            setattr(owner, str(self.flag.now), value)
        else:
            before = vars(owner).get(self.flag.name, self.value)
            vars(owner)[self.flag.name] = value
            _replace(self.situation, owner, self.flag, value, before)


def _replace(situation: Situation, arguments: Any, flag: OldFlag, value: Any, before: Any = None) -> None:
    """Set what replaces an old field in arguments that exist. `before`: the old field's value so far."""
    undoes = flag.value is not None and before not in (None, flag.default)
    if value is None or (value == flag.default and not undoes):
        return
    given = {flag.name: value}
    if flag.now and (flag.adds or flag.yields_to(getattr(arguments, flag.now))):
        given[flag.now] = getattr(arguments, flag.now)
    kept, found = rewrite_fields(given, {flag.name: flag})
    for name, now in kept.items():
        setattr(arguments, name, now)
    _apply(situation, found)


def _rewrite_call(situation: Situation, names: frozenset[str], arguments: Any, values: dict[str, Any]) -> None:
    active = _unknown_to(names)
    given = [flag for name, flag in active.items() if values.get(name) is not None]
    if given and dataclasses.is_dataclass(arguments) and _init_names(arguments) <= set(values):
        # dataclasses.replace passes all fields: those that an old one replaces have their values from before.
        for flag in given:
            if not flag.adds and not flag.yields_to(values.get(str(flag.now))):
                values.pop(str(flag.now), None)
    kept, found = rewrite_fields(values, active)
    _apply(situation, found)
    for flag in given:
        if flag.name not in _RENAMED:
            vars(arguments)[flag.name] = values[flag.name]
    values.clear()
    values.update(kept)


def _init_names(arguments: Any) -> set[str]:
    return {item.name for item in dataclasses.fields(arguments) if item.init}


def _remember_parsed(found: Iterable[Found]) -> None:
    """Let scripts read the values of old flags of the command line, in all arguments that are created later."""
    module = sys.modules.get("transformers.training_args")
    for item in found:
        field = vars(module.TrainingArguments).get(item.flag.name) if module else None
        if isinstance(field, _OldField) and item.value != "none":
            kind = type(field.value)
            field.value = item.is_true if kind is bool else item.value if field.value is None else kind(item.value)


def _replace_values(situation: Situation, names: set[str], arguments: Any, _options: dict[str, Any]) -> None:
    """Before __post_init__: the values that the installed version refuses, and old fields of a script's subclass.

    `names`: the fields of transformers' own class.
    """
    own = {item.name for item in dataclasses.fields(arguments)} - names
    defaults = {item.name: item.default for item in dataclasses.fields(arguments)}
    for flag in _ACTIVE.values():
        value = getattr(arguments, flag.name, None)
        if flag.only:
            if str(value) in flag.only:
                kept, found = rewrite_fields({flag.name: str(value)}, {flag.name: flag})
                setattr(arguments, flag.name, kept.get(flag.name))
                _apply(situation, found)
        elif flag.name in own and (
            flag.now is None or flag.adds or getattr(arguments, flag.now) == defaults[flag.now]
        ):
            _replace(situation, arguments, flag, value)


def _apply(situation: Situation, found: Iterable[Found]) -> None:
    """Report the flags found, and set what replaces them outside of the arguments."""
    for item in found:
        situation.named(item.flag.adaptation).report(item.flag.line)
        item.export(os.environ)


def set_local_rank(_situation: Situation, module: Any) -> None:
    """Set it after TrainingArguments. `module`: transformers.training_args."""

    @around(module.TrainingArguments, "__post_init__")
    def changed(original: Any, self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        self.local_rank = int(self.local_process_index)
