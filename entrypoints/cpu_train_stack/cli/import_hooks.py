"""Hooks that run a function on a module as soon as any code imports the module."""

from __future__ import annotations

import fnmatch
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Callable

Hook = Callable[[Any], None]  # hooks read and set names that a type of modules does not have


class _Finder(importlib.abc.MetaPathFinder):
    """Wraps the loader that the other finders find, to run the hooks after the module's own code."""

    def __init__(self) -> None:
        self.hooks: dict[str, list[Hook]] = {}
        self.patterns: list[tuple[str, Hook]] = []

    def _matching(self, name: str) -> list[Hook]:
        return [hook for pattern, hook in self.patterns if fnmatch.fnmatchcase(name, pattern)]

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self.hooks and not self._matching(name):
            return None
        # Libraries also find specs without importing (importlib.util.find_spec): keep the hooks until the import.
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: importlib.machinery.ModuleSpec | None = (
                find(name, path, target) if find and finder is not self else None
            )
            if spec is not None:
                if spec.loader is not None:
                    self._follow(spec.loader, name)
                return spec
        return None

    def _follow(self, loader: Any, name: str) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for hook in (*self.hooks.pop(name, ()), *self._matching(name)):
                hook(sys.modules.get(name, module))  # a module may replace itself in sys.modules

        loader.exec_module = exec_module  # only of this loader, which was created for this import


_FINDER = _Finder()


def after_import(name: str, hook: Hook) -> None:
    """Call `hook` with the module: now if it is imported already, otherwise after its import.

    `name`: or a pattern such as `package.*.module`, for every module with such a name.
    """
    if name in sys.modules:
        hook(sys.modules[name])
        return
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    if "*" in name:
        _FINDER.patterns.append((name, hook))
        for imported in fnmatch.filter(list(sys.modules), name):
            hook(sys.modules[imported])
        return
    _FINDER.hooks.setdefault(name, []).append(hook)
