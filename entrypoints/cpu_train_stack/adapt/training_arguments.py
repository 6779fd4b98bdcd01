"""Accept old flags of TrainingArguments on the command line, in a configuration file, and in a call.

transformers 5 refuses fields that older releases had deprecated: no_cuda, evaluation_strategy,
overwrite_output_dir and others (huggingface/transformers#41017, #41323, #41404). 5.1 removed `ccl` from the
choices of --ddp_backend, and accelerate 1.13 refuses that name in every place. Only parsers of TrainingArguments
are changed, and only for flags that they do not know: a script may have its own --no_cuda.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cpu_train_stack.adapt.adaptation import Adaptation, Situation, Verdict, before_method, on_import
from cpu_train_stack.adapt.flags import DDP_BACKEND, FLAGS, Found, OldFlag, rewrite, rewrite_fields

_BASE = "TrainingArguments"
# The flags to replace. Each adaptation adds its flag when it is installed.
_ACTIVE: dict[str, OldFlag] = {}
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
            if DDP_BACKEND.name in _ACTIVE:  # a known flag, of which one value is refused
                active[DDP_BACKEND.name] = DDP_BACKEND
            given, found = rewrite(given, active)
            _apply(situation, found)
        return parse(self, given, *rest, **options)

    @functools.wraps(parse_dict)
    def parse_dict_known(self: Any, args: Mapping[str, Any], *rest: Any, **options: Any) -> Any:
        if _holds_training_arguments(self):
            args, found = rewrite_fields(args, _unknown_to(action.dest for action in self._actions))
            _apply(situation, found)
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
            if "overwrite_output_dir" in _unknown_to(names):
                arguments.overwrite_output_dir = False  # not a field: a default for scripts that read it
            before_method(arguments, "__post_init__", functools.partial(_drop_ccl, situation))


def _rewrite_call(situation: Situation, names: set[str], _arguments: Any, values: dict[str, Any]) -> None:
    kept, found = rewrite_fields(values, _unknown_to(names))
    _apply(situation, found)
    values.clear()
    values.update(kept)


def _drop_ccl(situation: Situation, arguments: Any, _options: dict[str, Any]) -> None:
    if DDP_BACKEND.name in _ACTIVE and getattr(arguments, "ddp_backend", None) == "ccl":
        arguments.ddp_backend = None
        _apply(situation, [Found(DDP_BACKEND, "ccl")])


def _apply(situation: Situation, found: Iterable[Found]) -> None:
    """Report the flags found, and set what replaces them outside of the arguments."""
    for item in found:
        situation.report(item.flag.adaptation, item.flag.line)
        item.export(os.environ)
        if item.flag.name == "overwrite_output_dir" and "transformers.training_args" in sys.modules:
            sys.modules["transformers.training_args"].TrainingArguments.overwrite_output_dir = item.is_true


ADAPTATIONS = tuple(
    Adaptation(
        name=flag.adaptation,
        summary=flag.line,
        check=functools.partial(_check, flag),
        install=functools.partial(_install, flag),
    )
    for flag in FLAGS
    if flag.gone
)
