"""Whether the installed libraries have the private names that the run side uses."""

from __future__ import annotations

import inspect
import pkgutil
import re
from typing import Any

from cpu_train_stack.adapt.adaptation import Adaptation, Releases
from cpu_train_stack.adapt.private import PRIVATE

NAME = "private names"
# Not an adaptation, but shown with them. Of the newest rows only: older releases have other names.
ROW = Adaptation(NAME, "", (Releases("transformers", "5.0"),), {})


class MovedError(Exception):
    """What an adaptation hooks does not exist, or has another signature."""


def has(owner: Any, name: str) -> bool:
    """Whether a module, a class, or the objects that their code creates have a name."""
    if hasattr(owner, name) or name in getattr(owner, "__annotations__", {}):
        return True
    kinds = (
        [kind for kind in owner.__mro__ if kind.__module__ != "builtins"] if inspect.isclass(owner) else [owner]
    )
    assigned = re.compile(rf"\.{name}(: .*)? = ")
    return any(assigned.search(inspect.getsource(kind)) for kind in kinds)


def missing() -> list[str]:
    """The names in PRIVATE that do not exist, and the overridden methods that PRIVATE does not list."""
    found = []
    for place, names in PRIVATE.items():
        try:
            owner = pkgutil.resolve_name(place)
        except (ImportError, AttributeError):
            found.append(place)
            continue
        found += [f"{place}.{name}" for name in names if not has(owner, name)]
    from transformers import Trainer

    from cpu_train_stack.train.loop.trainer import CpuTrainer

    own = {name for name in vars(CpuTrainer) if name.startswith("_") and not name.startswith("__")}
    found += sorted(
        f"CpuTrainer overrides {name}"
        for name in own - {*PRIVATE["transformers:Trainer"]}
        if hasattr(Trainer, name)
    )
    return found


def are_there() -> bool:
    if lacking := missing():
        raise MovedError(", ".join(lacking))
    return True


def hook(owner: Any, name: str, *parameters: str) -> Any:
    """What an adaptation hooks, with these parameters. Raises MovedError if something is missing."""
    found = getattr(owner, name, None)
    if found is None:
        raise MovedError(f"{getattr(owner, '__name__', owner)} has no {name}")
    own = inspect.signature(found).parameters if parameters else {}
    if lacking := [each for each in parameters if each not in own]:
        raise MovedError(f"{name} has no parameter {', '.join(lacking)}")
    return found
