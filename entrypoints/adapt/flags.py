"""Old words of Hugging Face's TrainingArguments, on the command line, in a configuration file, in a call.

transformers 5 refuses what its deprecations had announced: no_cuda, evaluation_strategy, overwrite_output_dir and
others (huggingface/transformers#41017, #41323, #41404); 5.1 took `ccl` from the choices of --ddp_backend, and
accelerate 1.13 refuses the name wherever it comes from. Only a parser that holds TrainingArguments is touched, and
only for words that it does not know: a script may have a --no_cuda of its own.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

from entrypoints.adapt.adaptation import Adaptation, Situation, Verdict
from entrypoints.adapt.words import DDP_BACKEND, WORDS, Found, Word, name_of, rewrite, rewrite_fields
from entrypoints.cli.import_hooks import after_import

_BASE = "TrainingArguments"
# The words to look for; each adaptation that is on adds its own.
_ACTIVE: dict[str, Word] = {}
_MODULES = ("transformers.training_args", "transformers.training_args_seq2seq")


def _look(word: Word, situation: Situation) -> Verdict:
    if "transformers" not in situation.versions:
        return Verdict(False, "transformers is not installed")
    gone = word.gone or ""
    if word is DDP_BACKEND:
        refused = situation.since("transformers", gone) or situation.since("accelerate", "1.13.0")
        given = any(
            f"{name_of(one)}={one.partition('=')[2] or following}" == "ddp_backend=ccl"
            for one, following in zip(situation.arguments, [*situation.arguments[1:], ""])
        )
    else:
        refused = situation.since("transformers", gone)
        given = word.name in map(name_of, situation.arguments)
    version = situation.versions["transformers"]
    if not refused:
        return Verdict(False, f"transformers {version} knows it")
    if not given:
        return Verdict(False, "the command line does not have it")
    return Verdict(True, f"transformers {version} does not know it")


def _install(word: Word, situation: Situation) -> None:
    if not _ACTIVE:
        after_import("transformers.hf_argparser", functools.partial(_hook_parser, situation))
        for module in _MODULES:
            after_import(module, functools.partial(_hook_fields, situation))
    _ACTIVE[word.name] = word


def _unknown_to(known: Iterable[str]) -> dict[str, Word]:
    """The active words that are none of these names."""
    names = set(known)
    return {name: word for name, word in _ACTIVE.items() if name not in names}


def _hook_parser(situation: Situation, module: ModuleType) -> None:
    parser = module.HfArgumentParser
    parse, parse_dict = parser.parse_known_args, parser.parse_dict

    @functools.wraps(parse)
    def parse_known_args(self: Any, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:
        given = list(sys.argv[1:] if args is None else args)
        if _holds_training_arguments(self):
            active = _unknown_to(action.dest for action in self._actions)
            given, found = rewrite(given, active)
            given, refused = _without_ccl(given)
            _done(situation, [*found, *refused])
        return parse(self, given, *rest, **options)

    @functools.wraps(parse_dict)
    def parse_dict_known(self: Any, args: Mapping[str, Any], *rest: Any, **options: Any) -> Any:
        if _holds_training_arguments(self):
            args, found = rewrite_fields(args, _unknown_to(action.dest for action in self._actions))
            _done(situation, found)
        return parse_dict(self, args, *rest, **options)

    parser.parse_known_args, parser.parse_dict = parse_known_args, parse_dict_known


def _holds_training_arguments(parser: Any) -> bool:
    return any(base.__name__ == _BASE for one in parser.dataclass_types for base in one.__mro__)


def _without_ccl(arguments: Sequence[str]) -> tuple[list[str], list[Found]]:
    if DDP_BACKEND.name not in _ACTIVE:
        return list(arguments), []
    kept: list[str] = []
    found: list[Found] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if name_of(argument) != DDP_BACKEND.name:
            kept.append(argument)
        elif argument.partition("=")[2] == "ccl" or ("=" not in argument and rest[:1] == ["ccl"]):
            del rest[: "=" not in argument]
            found.append(Found(DDP_BACKEND, "ccl"))
        else:
            kept.append(argument)
    return kept, found


def _hook_fields(situation: Situation, module: ModuleType) -> None:
    """Calls of the class by the script itself: no parser sees their words."""
    for name in (_BASE, f"Seq2Seq{_BASE}"):
        made = vars(module).get(name)
        if made is None or made.__module__ != module.__name__:
            continue
        _hook_call(situation, made)
        if name != _BASE:
            continue
        if "overwrite_output_dir" in _unknown_to(item.name for item in dataclasses.fields(made)):
            made.overwrite_output_dir = False  # not a field: a default for the scripts that read it
        _hook_post_init(situation, made)


def _hook_call(situation: Situation, made: Any) -> None:
    init, names = made.__init__, {item.name for item in dataclasses.fields(made)}

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **values: Any) -> None:  # noqa: N807 - it is one
        kept, found = rewrite_fields(values, _unknown_to(names))
        _done(situation, found)
        init(self, *args, **kept)

    made.__init__ = __init__


def _hook_post_init(situation: Situation, made: Any) -> None:
    post_init = made.__post_init__

    @functools.wraps(post_init)
    def __post_init__(self: Any) -> None:  # noqa: N807 - it is one
        if DDP_BACKEND.name in _ACTIVE and getattr(self, "ddp_backend", None) == "ccl":
            self.ddp_backend = None
            _done(situation, [Found(DDP_BACKEND, "ccl")])
        post_init(self)

    made.__post_init__ = __post_init__


def _done(situation: Situation, found: Iterable[Found]) -> None:
    for item in found:
        situation.say(item.word.adaptation, item.word.line)
        item.export(os.environ)
        if item.word.name == "overwrite_output_dir" and "transformers.training_args" in sys.modules:
            sys.modules["transformers.training_args"].TrainingArguments.overwrite_output_dir = item.is_true


def _adaptation(word: Word) -> Adaptation:
    return Adaptation(
        name=word.adaptation,
        summary=word.line,
        look=functools.partial(_look, word),
        install=functools.partial(_install, word),
    )


ADAPTATIONS = tuple(_adaptation(word) for word in WORDS if word.gone)
