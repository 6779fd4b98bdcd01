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
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cpu_train_stack import contract
from cpu_train_stack.adapt.adaptation import Adaptation, Situation, Verdict, before_method, on_import, since
from cpu_train_stack.adapt.flags import DDP_BACKEND, FLAGS, OldFlag
from cpu_train_stack.adapt.launcher_variables import is_script
from cpu_train_stack.adapt.rewriting import Found, rewrite, rewrite_fields

_BASE = "TrainingArguments"
# The flags to replace. Each adaptation adds its flag when it is installed.
_ACTIVE: dict[str, OldFlag] = {}
# Old fields whose new fields have the same values.
_RENAMED = frozenset({"evaluation_strategy", "push_to_hub_token", "push_to_hub_model_id", "torchdynamo"})
_MODULES = ("transformers.training_args", "transformers.training_args_seq2seq")


def _check(flag: OldFlag, situation: Situation) -> Verdict:
    version = situation.versions.get("transformers")
    if version is None:
        return Verdict(False, "transformers is not installed")
    refused = situation.since("transformers", flag.gone or "")
    if flag is DDP_BACKEND:
        refused = refused or situation.since("accelerate", "1.13.0")
    if not refused:
        return Verdict(False, f"transformers {version} supports it")
    if not rewrite(situation.arguments, {flag.name: flag})[1]:
        return Verdict(False, "not on the command line")
    return Verdict(True, f"transformers {version} does not support it")


def _install(flag: OldFlag, situation: Situation) -> None:
    if not _ACTIVE:
        on_import("transformers.hf_argparser", _hook_parser)(situation)
        for module in _MODULES:
            on_import(module, _hook_fields)(situation)
    _ACTIVE[flag.name] = flag


def _unknown_to(known: Iterable[str]) -> dict[str, OldFlag]:
    """The active flags that are not in `known`."""
    names = set(known)
    return {name: flag for name, flag in _ACTIVE.items() if name not in names}


def _hook_parser(situation: Situation, module: Any) -> None:
    parser = module.HfArgumentParser
    parse, parse_dict = parser.parse_known_args, parser.parse_dict

    @functools.wraps(parse)
    def parse_known_args(self: Any, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:
        given = list(sys.argv[1:] if args is None else args)
        if _holds_training_arguments(self):
            active = _unknown_to(action.dest for action in self._actions)
            # Known flags, of which some values are refused.
            active.update({name: flag for name, flag in _ACTIVE.items() if flag.only})
            given, found = rewrite(given, active)
            _apply(situation, found)
            _remember_parsed(found)
        return parse(self, given, *rest, **options)

    @functools.wraps(parse_dict)
    def parse_dict_known(self: Any, args: Mapping[str, Any], *rest: Any, **options: Any) -> Any:
        if _holds_training_arguments(self):
            args, found = rewrite_fields(args, _unknown_to(action.dest for action in self._actions))
            _apply(situation, found)
            _remember_parsed(found)
        return parse_dict(self, args, *rest, **options)

    parser.parse_known_args, parser.parse_dict = parse_known_args, parse_dict_known


def _holds_training_arguments(parser: Any) -> bool:
    return any(base.__name__ == _BASE for one in parser.dataclass_types for base in one.__mro__)


def _hook_fields(situation: Situation, module: Any) -> None:
    """Calls of the class in the script, which no parser sees."""
    for name in (_BASE, f"Seq2Seq{_BASE}"):
        arguments = vars(module).get(name)
        if arguments is None or arguments.__module__ != module.__name__:
            continue
        names = {item.name for item in dataclasses.fields(arguments)}
        before_method(arguments, "__init__", functools.partial(_rewrite_call, situation, names))
        if name == _BASE:
            for flag in _unknown_to(names).values():
                setattr(arguments, flag.name, _OldField(situation, flag))
            before_method(arguments, "__post_init__", functools.partial(_replace_values, situation))


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
        if is_script(frame) and not str(frame.f_globals.get("__name__")).startswith(contract.MODULES):
            now = f": the script reads {flag.now}" if self.is_renamed else ", and was not set"
            self.situation.report(flag.adaptation, f"{_BASE}.{flag.name} was removed{now}")
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
            vars(owner)[self.flag.name] = value


def _rewrite_call(situation: Situation, names: set[str], arguments: Any, values: dict[str, Any]) -> None:
    active = _unknown_to(names)
    kept, found = rewrite_fields(values, active)
    _apply(situation, found)
    for name in active.keys() - _RENAMED:
        if values.get(name) is not None:
            setattr(arguments, name, values[name])
    values.clear()
    values.update(kept)


def _remember_parsed(found: Iterable[Found]) -> None:
    """Let scripts read the values of old flags of the command line, in all arguments that are created later."""
    module = sys.modules.get("transformers.training_args")
    for item in found:
        field = vars(module.TrainingArguments).get(item.flag.name) if module else None
        if isinstance(field, _OldField) and item.value != "none":
            kind = type(field.value)
            field.value = item.is_true if kind is bool else item.value if field.value is None else kind(item.value)


def _replace_values(situation: Situation, arguments: Any, _options: dict[str, Any]) -> None:
    """Before __post_init__: the values that the installed version refuses, also those of a subclass."""
    for flag in _ACTIVE.values():
        if flag.only and str(getattr(arguments, flag.name, None)) in flag.only:
            given = {flag.name: str(getattr(arguments, flag.name))}
            kept, found = rewrite_fields(given, {flag.name: flag})
            setattr(arguments, flag.name, kept.get(flag.name))
            _apply(situation, found)


def _apply(situation: Situation, found: Iterable[Found]) -> None:
    """Report the flags found, and set what replaces them outside of the arguments."""
    for item in found:
        situation.report(item.flag.adaptation, item.flag.line)
        item.export(os.environ)


def _set_local_rank(situation: Situation, module: Any) -> None:
    if not situation.since("transformers", "5.0.0"):
        return
    arguments = module.TrainingArguments
    original = arguments.__post_init__

    @functools.wraps(original)
    def changed(self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        self.local_rank = int(self.local_process_index)

    arguments.__post_init__ = changed


_LOCAL_RANK = Adaptation(
    "local-rank",
    "TrainingArguments.local_rank is the rank's own, as in transformers 4",
    since("transformers", "5.0.0", "if the script reads it", "transformers before 5.0 sets it"),
    on_import("transformers.training_args", _set_local_rank),
)
ADAPTATIONS = (
    _LOCAL_RANK,
    *(
        Adaptation(
            name=flag.adaptation,
            summary=flag.line,
            check=functools.partial(_check, flag),
            install=functools.partial(_install, flag),
        )
        for flag in FLAGS
        if flag.gone
    ),
)
