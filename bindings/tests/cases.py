"""What callback_cases.py and group_cases.py share. Each case runs on two ranks."""

from __future__ import annotations

import argparse
import contextlib
import importlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT = timedelta(seconds=60)


def check(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(f"rank {dist.get_rank()}: {message}")


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


def run(*cases: Callable[[], None]) -> None:
    """Run the case that the command line names. Rank 0 prints "CASE: right"."""
    by_name = {case.__name__: case for case in cases}
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=by_name)
    name = parser.parse_args().case
    importlib.import_module("oneccl_bindings_for_pytorch")  # registers the backend
    torch.set_num_threads(1)
    if not dist.is_initialized():
        dist.init_process_group("cpu:ccl", timeout=TIMEOUT)
    by_name[name]()
    if dist.get_rank() == 0:
        print(f"{name}: right", flush=True)
    with contextlib.suppress(RuntimeError):
        dist.destroy_process_group()
