"""Replace flags from old guides (listed in compat/flags.py) on the command line of `train`."""

from __future__ import annotations

import os
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.compat.flags import FLAGS, GLUE, OldFlag
from cpu_train_stack.compat.rewriting import Found, name_of, rewrite
from cpu_train_stack.train.flags import unsupported

_OLD = {flag.name: flag.of_train for flag in FLAGS}
# Every flag that is handled here, in addition to the flags of this image's transformers.
HANDLED = frozenset({*_OLD, *unsupported.REFUSED})


@dataclass(frozen=True)
class Cleaned:
    """The arguments for the parser, and the old flags that were replaced or dropped."""

    argv: list[str]
    found: list[Found]

    @property
    def notes(self) -> list[str]:
        """One line per old flag."""
        return list(dict.fromkeys(item.flag.line for item in self.found))

    def export(self, environ: MutableMapping[str, str] = os.environ) -> None:
        """Set the environment variables that replace old flags."""
        for item in self.found:
            item.export(environ)


def clean(argv: Iterable[str], has_ipex: bool = False, known: frozenset[str] = frozenset()) -> Cleaned:
    """Replace flags from old guides.

    `has_ipex`: this image's pin supports `--use_ipex`. `known`: the flags of this image's transformers.

    Raises UsageError for a flag without an equivalent.
    """
    given = list(argv)
    names = {name for name in map(name_of, given) if name}
    unsupported.check_names(names)
    active = {
        name: flag
        for name, flag in _OLD.items()
        if name not in known or not (flag.train_keeps or (name == "use_ipex" and has_ipex))
    }
    cleaned, found = rewrite(given, active)
    if any(item.flag.name == "task_name" for item in found) and "dataset_name" not in names:
        cleaned.append(f"--dataset_name={GLUE}")
    devices = {name: OldFlag(name, None, None, "") for name in ("no_cuda", "use_cpu")}
    for item in rewrite(given, devices)[1]:
        if not item.is_true:
            raise UsageError(f"--{item.flag.name} {item.value}: this trainer runs on CPUs only, remove the flag")
    return Cleaned(cleaned, found)
