"""What the cases of edge_cases.py share."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT = timedelta(seconds=60)
RELEASE = tuple(int(part) for part in torch.__version__.split(".")[:2])


def check(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(f"rank {dist.get_rank()}: {message}")


class Wrapped(dist.Store):
    """Another store, for subclasses that override a method."""

    def __init__(self, store: dist.Store) -> None:
        super().__init__()
        self.store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def clone(self) -> dist.Store:
        return self

    def set(self, key: str, value: Any) -> None:
        self.store.set(key, value)

    def get(self, key: str) -> bytes:
        return bytes(self.store.get(key))

    def check(self, keys: list[str]) -> bool:
        if hasattr(self.store, "check"):
            return bool(self.store.check(keys))
        # torch 2.1 and older. For a missing key, compare_set returns the expected value and stores nothing.
        return all(self.store.compare_set(key, "missing", "missing") != b"missing" for key in keys)

    def wait(self, keys: list[str], *timeout: timedelta) -> None:
        self.store.wait(keys, *timeout)

    def add(self, key: str, value: int) -> int:
        return int(self.store.add(key, value))


def wrap_stores(wrap: Callable[[dist.Store], dist.Store]) -> None:
    """Create the later groups of this process with wrapped stores."""
    package = importlib.import_module("oneccl_bindings_for_pytorch")
    create = package.create
    stores = []  # C++ does not keep the Python part of a store alive

    def create_wrapped(store: dist.Store, **options: Any) -> Any:
        stores.append(wrap(store))
        return create(store=stores[-1], **options)

    setattr(package, "create", create_wrapped)  # noqa: B010


def new_group(seconds: float = 60) -> dist.ProcessGroup:
    return dist.new_group(backend="ccl", timeout=timedelta(seconds=seconds))


def backend_of(group: dist.ProcessGroup | None = None) -> Any:
    return (group or dist.distributed_c10d._get_default_group())._get_backend(torch.device("cpu"))


def error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return ""


def set_key(key: str) -> None:
    dist.distributed_c10d._get_default_store().set(key, "")


def wait_for_key(key: str) -> None:
    dist.distributed_c10d._get_default_store().wait([key], TIMEOUT)
