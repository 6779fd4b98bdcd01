"""An adaptation, and the situation of the script on which it depends."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Callable

from cpu_train_stack.cli import packages
from cpu_train_stack.cli.import_hooks import after_import
from cpu_train_stack.cli.say import say

# The newest releases with which `./inv dev canaries` has found every adaptation needed.
SEEN = {
    "torch": "2.13.0",
    "transformers": "5.24.0",
    "accelerate": "1.15.0",
    "datasets": "5.2.0",
    "evaluate": "0.4.6",
}
PACKAGES = ("transformers", "accelerate", "evaluate", "datasets", "torch", packages.IPEX)
# As the module of a hook: it is imported already, so that the function is called at once.
NOW = "sys"


@dataclass(frozen=True)
class Situation:
    """A script's command line and its environment. `backend`: of the process group.

    `versions`: of the installed PACKAGES. `in_train`: for the command `train`, not for a script. `name`: of the
    adaptation that gets it. `printed`: the lines that `report` has printed.
    """

    arguments: Sequence[str]
    versions: Mapping[str, str]
    backend: str
    rank: int = 0
    world_size: int = 1
    in_train: bool = False
    name: str = ""
    printed: set[str] = field(default_factory=set)

    def since(self, package: str, version: str) -> bool:
        """Whether this version of the package, or a later one, is installed."""
        return packages.release(self.versions.get(package)) >= packages.release(version)

    def named(self, name: str) -> Situation:
        """The situation for the adaptation with this name."""
        return replace(self, name=name)

    def report(self, line: str, is_fallback: bool = False) -> None:
        """Print what the adaptation did, once and on rank 0 only.

        For `train`, print only where an adaptation has no effect (`is_fallback`).
        """
        if self.rank == 0 and line not in self.printed and (is_fallback or not self.in_train):
            say(f"note: {line}" if self.in_train else f"adapted ({self.name}): {line}")
        self.printed.add(line)


@dataclass(frozen=True)
class Verdict:
    """Whether an adaptation applies in a situation, and why."""

    applies: bool
    why: str


@dataclass(frozen=True)
class Releases:
    """The releases of a package that need an adaptation: from `since`, before `until`. None: no such limit."""

    package: str
    since: str | None = None
    until: str | None = None

    def problem(self, situation: Situation) -> str | None:
        """Why the installed release is not one of them, None if it is."""
        if self.package not in situation.versions:
            return f"{self.package} is not installed"
        if self.since and not situation.since(self.package, self.since):
            return f"it is for {self.package} {self.since} and newer"
        if self.until and situation.since(self.package, self.until):
            return f"{self.package} {self.until} and newer do not need it"
        return None


@dataclass(frozen=True)
class Adaptation:
    """`summary`: its effect in one line.

    `releases`: it is needed in any of these; empty if it depends on no package. `hooks`: by the module of a
    library, the function that changes it, as ROOM.MODULE:FUNCTION of this package; it gets the situation and the
    module. `when`: in which scripts. `obstacle`: returns why it has no effect in a situation, None if it has.
    `upstream`: the issue or change behind it, empty if unknown. `is_default`: whether `run` makes it without
    --adapt. `finds_out`: the functions find out whether it applies; they are called in any case.

    tests/image/scripts/canaries shows for each whether a release of the libraries still needs it.
    """

    name: str
    summary: str
    releases: tuple[Releases, ...]
    hooks: Mapping[str, str]
    when: str = ""
    upstream: str = ""
    obstacle: Callable[[Situation], str | None] | None = None
    is_default: bool = True
    finds_out: bool = False

    def check(self, situation: Situation) -> Verdict:
        """Whether it applies."""
        problems = [one.problem(situation) for one in self.releases]
        problem = problems[0] if problems and all(problems) else None
        if problem is None and self.obstacle is not None:
            problem = self.obstacle(situation)
        return Verdict(problem is None, problem or self.when)

    def install(self, situation: Situation) -> None:
        """Hook the modules of the libraries, if it applies."""
        if self.finds_out or self.check(situation).applies:
            for module, hook in self.hooks.items():
                after_import(module, functools.partial(_call, hook, situation.named(self.name)))


def _call(hook: str, situation: Situation, module: Any) -> None:
    place, _, name = hook.partition(":")
    getattr(importlib.import_module(f"cpu_train_stack.{place}"), name)(situation, module)
