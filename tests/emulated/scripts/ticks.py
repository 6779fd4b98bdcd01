"""Counts instructions: on the emulated machine, the time stamp counter advances by one with each instruction."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from typing import Any

_READ = bytes.fromhex("0f31 48c1e220 4809d0 c3")  # rdtsc; shl rdx, 32; or rax, rdx; ret
_memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
_memory.write(_READ)
_counter = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(ctypes.c_char.from_buffer(_memory)))


def count(compute: Callable[[], Any], rounds: int = 3) -> int:
    """The fewest instructions of some rounds: others also have interrupts, page faults and compilation."""
    return min(_once(compute) for _ in range(rounds))


def _once(compute: Callable[[], Any]) -> int:
    before = _counter()
    compute()
    return int(_counter() - before)
