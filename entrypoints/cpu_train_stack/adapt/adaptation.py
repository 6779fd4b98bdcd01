"""An adaptation, and the situation of the script on which it depends."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
PACKAGES = ("transformers", "accelerate", "evaluate", "datasets", "torch", packages.IPEX)


@dataclass(frozen=True)
class Situation:
    """A script's command line and its environment. `backend`: of the process group.

    `versions`: of the installed PACKAGES. `in_train`: for the command `train`, not for a script. `printed`: the
    lines that `report` has printed.
    """

    arguments: Sequence[str]
    versions: Mapping[str, str]
    backend: str
    rank: int = 0
    world_size: int = 1
    in_train: bool = False
    printed: set[str] = field(default_factory=set)

    def since(self, package: str, version: str) -> bool:
        """Whether this version of the package, or a later one, is installed."""
        return packages.release(self.versions.get(package)) >= packages.release(version)

    def before(self, package: str, version: str) -> bool:
        """Whether an older version of the package is installed."""
        return package in self.versions and not self.since(package, version)

    def report(self, name: str, line: str, is_fallback: bool = False) -> None:
        """Print what an adaptation did, once and on rank 0 only. `name`: of the adaptation.

        For `train`, print only where an adaptation has no effect (`is_fallback`).
        """
        if self.rank == 0 and line not in self.printed and (is_fallback or not self.in_train):
            say(f"note: {line}" if self.in_train else f"adapted ({name}): {line}")
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
        if self.since and situation.before(self.package, self.since):
            return f"it is for {self.package} {self.since} and newer"
        if self.until and situation.since(self.package, self.until):
            return f"{self.package} {self.until} and newer do not need it"
        return None

    def has(self, situation: Situation) -> bool:
        return self.problem(situation) is None


@dataclass(frozen=True)
class Adaptation:
    """`summary`: its effect in one line. `install`: hook the modules that it changes.

    `releases`: it is needed in any of these; empty if it depends on no package. `when`: in which scripts.
    `obstacle`: returns why it has no effect in a situation, None if it has. `upstream`: the issue or change behind
    it, empty if unknown. `is_default`: whether `run` makes it without --adapt.

    tests/image/scripts/canaries shows for each whether a release of the libraries still needs it.
    """

    name: str
    summary: str
    releases: tuple[Releases, ...]
    install: Callable[[Situation], None]
    when: str = ""
    upstream: str = ""
    obstacle: Callable[[Situation], str | None] | None = None
    is_default: bool = True

    def check(self, situation: Situation) -> Verdict:
        """Whether it applies."""
        problems = [one.problem(situation) for one in self.releases]
        problem = problems[0] if problems and all(problems) else None
        if problem is None and self.obstacle is not None:
            problem = self.obstacle(situation)
        return Verdict(problem is None, problem or self.when)


def on_import(
    module: str, hook: Callable[[Situation, Any], None], releases: Releases | None = None
) -> Callable[[Situation], None]:
    """An `install` that calls `hook` when the script imports `module`. `releases`: only in these."""

    def install(situation: Situation) -> None:
        if releases is None or releases.has(situation):
            after_import(module, functools.partial(hook, situation))

    return install


def before_method(owner: Any, name: str, change: Callable[[Any, dict[str, Any]], None]) -> None:
    """Call `change` before each call of a method. `change` gets the object and the keyword arguments."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def changed(self: Any, *args: Any, **options: Any) -> Any:
        change(self, options)
        return original(self, *args, **options)

    setattr(owner, name, changed)


def after_creation(owner: Any, change: Callable[[Any], None]) -> None:
    """Call `change` with each object of the class `owner`, after its `__init__`."""
    original = owner.__init__

    @functools.wraps(original)
    def changed(self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        change(self)

    owner.__init__ = changed


def add_to_transformers(module: Any, name: str, find: Callable[[], Any]) -> None:
    """Let scripts import a removed name from transformers. `module`: transformers.utils.import_utils.

    On the class of all lazy modules: processing_utils replaces the module transformers by another object.
    `find`: returns the object, None if there is none.
    """
    original = module._LazyModule.__getattr__

    @functools.wraps(original)
    def get(self: Any, wanted: str) -> Any:
        try:
            return original(self, wanted)
        except AttributeError:
            found = find() if (self.__name__, wanted) == ("transformers", name) else None
            if found is None:
                raise
            return found

    module._LazyModule.__getattr__ = get


def is_plain(module: Any, expected: type) -> bool:
    """Whether a module is of this class, and nothing observes or replaces its forward."""
    return (
        type(module) is expected
        and "forward" not in vars(module)
        and not any(getattr(module, name, None) for name in _HOOKS)
    )


def is_compiled(module: Any) -> bool:
    """Whether torch.compile has changed a module."""
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
