"""An adaptation, and the situation of the script on which it depends."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable

from cpu_train_stack.cli import packages
from cpu_train_stack.cli.import_hooks import after_import
from cpu_train_stack.cli.say import say

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
PACKAGES = ("transformers", "accelerate", "evaluate", "datasets", "torch", packages.IPEX)


@dataclass(frozen=True)
class Situation:
    """A script's command line and its environment. `backend`: of the process group.

    `versions`: of the installed PACKAGES. `printed`: the lines that `report` has printed.
    """

    arguments: Sequence[str]
    versions: Mapping[str, str]
    backend: str
    rank: int = 0
    world_size: int = 1
    printed: set[str] = field(default_factory=set)

    def since(self, package: str, version: str) -> bool:
        """Whether this version of the package, or a later one, is installed."""
        return packages.release(self.versions.get(package)) >= packages.release(version)

    def before(self, package: str, version: str) -> bool:
        """Whether an older version of the package is installed."""
        return package in self.versions and not self.since(package, version)

    def report(self, name: str, line: str) -> None:
        """Print what an adaptation did, once and on rank 0 only. `name`: of the adaptation."""
        if self.rank == 0 and line not in self.printed:
            say(f"adapted ({name}): {line}")
        self.printed.add(line)


@dataclass(frozen=True)
class Verdict:
    """Whether an adaptation applies in a situation, and why."""

    applies: bool
    why: str


@dataclass(frozen=True)
class Adaptation:
    """`summary`: its effect in one line.

    `check`: whether it applies. `install`: hook the modules that it changes. `is_default`: whether `run` makes it
    without --adapt.
    """

    name: str
    summary: str
    check: Callable[[Situation], Verdict]
    install: Callable[[Situation], None]
    is_default: bool = True


def on_import(module: str, hook: Callable[[Situation, Any], None]) -> Callable[[Situation], None]:
    """An `install` that calls `hook` when the script imports `module`."""
    return lambda situation: after_import(module, functools.partial(hook, situation))


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


def removed_in(package: str, version: str) -> Callable[[Situation], Verdict]:
    """A `check` for a name that the package removed in `version`."""

    return since(
        package, version, "if the script uses it", f"{package} before {version.rpartition('.')[0]} has it"
    )


def since(package: str, version: str, when: str, before: str) -> Callable[[Situation], Verdict]:
    """A `check` for what needs a `version` of the package. `before`: why it does not apply to older versions."""

    def check(situation: Situation) -> Verdict:
        if package not in situation.versions:
            return Verdict(False, f"{package} is not installed")
        applies = situation.since(package, version)
        return Verdict(applies, when if applies else before)

    return check
