"""Flags from old guides (listed in adapt.words), and suggestions for misspelled flags."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, replace

from entrypoints.adapt import words
from entrypoints.cli.errors import UsageError

_GONE = "drop it, it has no meaning on CPU ranks"
# Flags without an equivalent.
_REFUSED = {
    "tpu_num_cores": _GONE,
    "deepspeed": _GONE,
    # Data sets keep columns for the metrics beside those of the model.
    "remove_unused_columns": "drop it, the trainer selects the model's columns",
}
_OLD = {word.name: word.of_train for word in words.WORDS}
# Not replaced in releases that support them: there, the replacement does not exist or has another meaning.
_KEPT = frozenset({"warmup_ratio", "group_by_length", "logging_dir", "overwrite_output_dir"})
# Every flag that is handled here, beside the release's own flags.
ANSWERED = frozenset({*_OLD, *_REFUSED})


@dataclass(frozen=True)
class Cleaned:
    """The arguments for the parser, and the old flags that were replaced or dropped."""

    argv: list[str]
    found: list[words.Found]

    @property
    def notes(self) -> list[str]:
        """One line per old flag."""
        return list(dict.fromkeys(item.word.line for item in self.found))

    def export(self, environ: MutableMapping[str, str] = os.environ) -> None:
        """Set the environment variables that replace old flags."""
        for item in self.found:
            item.export(environ)


def name_of(argument: str) -> str | None:
    """`--Flag-name=value` -> `flag_name`; None if it is not a long flag."""
    if not argument.startswith("--") or argument == "--":
        return None
    return argument[2:].split("=", 1)[0].replace("-", "_")


def clean(argv: Iterable[str], has_ipex: bool = False, known: frozenset[str] = frozenset()) -> Cleaned:
    """Replace flags from old guides.

    `has_ipex`: this image's pin supports `--use_ipex`. `known`: the flags of this image's release.

    Raises UsageError for a flag without an equivalent.
    """
    given = list(argv)
    names = {name for name in map(name_of, given) if name}
    for name, instead in _REFUSED.items():
        if name in names:
            raise UsageError(f"--{name} is not a flag of this trainer: {instead}")
    kept = (known & _KEPT) | ({"use_ipex"} if has_ipex and "use_ipex" in known else set())
    active = {
        # The replacement's own flag takes precedence.
        name: replace(word, now=None, why=f"--{word.now} is given") if word.now in names else word
        for name, word in _OLD.items()
        if name not in kept
    }
    cleaned, found = words.rewrite(given, active)
    if any(item.word.name == "task_name" for item in found) and "dataset_name" not in names:
        cleaned.append(f"--dataset_name={words.GLUE}")
    _refuse_other_devices(given)
    return Cleaned(cleaned, found)


def _refuse_other_devices(argv: list[str]) -> None:
    asked = {name: words.Word(name, None, None, "") for name in ("no_cuda", "use_cpu")}
    for item in words.rewrite(argv, asked)[1]:
        if not item.is_true:
            raise UsageError(f"--{item.word.name} {item.value}: this trainer runs on CPUs only, drop the flag")


def unknown(argument: str, known: Iterable[str]) -> UsageError:
    """The error for an argument that no flag takes, with the nearest known flag."""
    name = name_of(argument)
    if name is None:
        return UsageError(
            f"found '{argument}' where a --flag was expected, or before them all a config file (.yaml); "
            "train --help lists the flags"
        )
    near = _nearest(name, known)
    return UsageError(
        f"unknown flag --{name}: {f'did you mean --{near}?' if near else 'train --help lists the flags'}"
    )


def unknown_key(key: str, known: Iterable[str]) -> str:
    """The same for a key of a config file."""
    near = _nearest(key, known)
    return f"unknown key '{key}': {f'did you mean {near}?' if near else 'train --help lists the keys'}"


def _nearest(name: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)), None)
