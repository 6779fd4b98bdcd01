"""How adaptations change functions and classes of libraries, and which modules of a model are unchanged."""

from __future__ import annotations

import functools
from typing import Any, Callable

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
Change = Callable[..., Any]


def around(owner: Any, name: str) -> Callable[[Change], Change]:
    """Decorates what replaces a function of a module or a method of a class. It gets the original one first."""
    is_of_class = isinstance(vars(owner).get(name), classmethod)
    original = vars(owner)[name].__func__ if is_of_class else getattr(owner, name)

    def decorate(change: Change) -> Change:
        @functools.wraps(original)
        def changed(*args: Any, **options: Any) -> Any:
            return change(original, *args, **options)

        setattr(owner, name, classmethod(changed) if is_of_class else changed)
        return change

    return decorate


def before_method(owner: Any, name: str, change: Callable[[Any, dict[str, Any]], None]) -> None:
    """Call `change` before each call of a method. `change` gets the object and the keyword arguments."""

    @around(owner, name)
    def changed(original: Any, self: Any, *args: Any, **options: Any) -> Any:
        change(self, options)
        return original(self, *args, **options)


def after_creation(owner: Any, change: Callable[[Any], None]) -> None:
    """Call `change` with each object of the class `owner`, after its `__init__`."""

    @around(owner, "__init__")
    def changed(original: Any, self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        change(self)


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
