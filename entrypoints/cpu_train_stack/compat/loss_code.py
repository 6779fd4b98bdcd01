"""The code of a script that computes a Trainer's loss, and the names that it reads. Torch-free."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator, Mapping
from types import CodeType
from typing import Any

from cpu_train_stack import contract

_LIBRARIES = ("transformers.", contract.MODULES)


def is_scripts(function: Any) -> bool:
    """Whether a function is the script's, and not Trainer's own or an adaptation."""
    return not f"{inspect.unwrap(_plain(function)).__module__}.".startswith(_LIBRARIES)


def own_method(owner: Any, name: str) -> Any:
    """The script's function of this name among the attributes of a class or an object. None if it has none."""
    found = vars(owner).get(name)
    return found if callable(found) and is_scripts(found) else None


def loss_functions(trainer: Any) -> Iterator[tuple[str, Any]]:
    """The name and the function of all code outside of Trainer that makes the loss of the model's output."""
    for owner in (trainer, *type(trainer).__mro__):
        own = own_method(owner, "compute_loss")
        if own is not None:
            yield f"{getattr(owner, '__name__', 'trainer')}.compute_loss", own
    given = _plain(trainer.compute_loss_func)
    if given is not None:
        kind = type(given)
        yield "compute_loss_func", given if inspect.isroutine(given) else getattr(kind, "forward", kind.__call__)


@functools.lru_cache(maxsize=64)
def names(function: Any) -> frozenset[str]:
    """The names that a function reads, also in the functions inside it."""
    code = getattr(inspect.unwrap(_plain(function)), "__code__", None)
    left, found = [code] if isinstance(code, CodeType) else [], set()
    while left:
        one = left.pop()
        found |= {*one.co_names, *one.co_varnames, *one.co_freevars}
        left += [inner for inner in one.co_consts if isinstance(inner, CodeType)]
    return frozenset(found)


def _plain(function: Any) -> Any:
    """The function of a partial one or of a method."""
    while isinstance(function, (functools.partial, functools.partialmethod)):
        function = function.func
    return getattr(function, "__func__", function)


@contextlib.contextmanager
def attributes(owner: Any, values: Mapping[str, Any]) -> Iterator[None]:
    """Inside the block, an object has these attributes. Afterwards, it has its own again."""
    before = {name: getattr(owner, name) for name in values}
    try:
        for name, value in values.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)
