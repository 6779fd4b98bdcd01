"""Finds the classes of transformers' models that compute what a faster forward computes, in any model family.

A class is recognized by the end of its name and by what it computes: its forward runs with a simple function, such
as the sine, in place of each of its parts, and has to return what the kernels' formula returns with these
functions.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, Callable

import torch


def change(module: Any, table: Mapping[str, Callable[[Any, Any], Callable[..., Any] | None]]) -> list[str]:
    """Replace the forward of a module's classes. Returns the names of the classes.

    `table`: by the end of the name, a function of module and class. It returns a function that makes the new
    forward of the old one, or None.
    """
    found = []
    for ending, recognized in table.items():
        for kind in classes(module, ending):
            make = None
            with attempt():
                make = recognized(module, kind)
            if make is None:
                continue
            original = kind.forward
            kind.forward = functools.wraps(original)(make(original))
            if hasattr(kind, "gradient_checkpointing"):
                kind.__init_subclass__()  # adds activation checkpointing to the new forward
            found.append(kind.__name__)
    return found


def classes(module: Any, *endings: str) -> Iterator[Any]:
    """The torch modules that a Python module defines itself, whose names end like this."""
    for name, kind in list(vars(module).items()):
        is_class = inspect.isclass(kind) and issubclass(kind, torch.nn.Module)
        if is_class and (kind.__module__, kind.__name__) == (module.__name__, name) and name.endswith(endings):
            yield kind


def computes(forward: Any, formula: Callable[..., Any], given: int = 1, **parts: Any) -> bool:
    """Whether the forward of a class returns the result of a formula, for the same inputs.

    `formula`: gets the inputs, float64 [2, 3, 4] each. `given`: their number. `parts`: the attributes of `self`.
    """
    with attempt():
        numbers = torch.arange(24, dtype=torch.float64).sin().view(2, 3, 4)
        inputs = [numbers + one for one in range(given)]
        for training in (False, True):
            found = inspect.unwrap(forward)(SimpleNamespace(training=training, **parts), *inputs)
            torch.testing.assert_close(found, formula(*inputs), rtol=1e-12, atol=1e-12)
        return True
    return False


def inputs_of(kind: Any) -> list[str]:
    """The names of what the forward of a class takes, without **kwargs."""
    _self, *given = inspect.signature(inspect.unwrap(kind.forward)).parameters.values()
    return [one.name for one in given if one.kind is not one.VAR_KEYWORD]


@contextlib.contextmanager
def attempt() -> Iterator[None]:
    """Inside the block, torch computes on CPUs and without gradients, whatever the script's settings are.

    An error ends the block: a class has this name, but other parts.
    """
    with (
        torch.no_grad(),
        torch.device("cpu"),
        torch.autocast("cpu", enabled=False),
        contextlib.suppress(Exception),
    ):
        yield
