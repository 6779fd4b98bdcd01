"""This process's NUMA memory policy: reading and setting it. Torch-free.

A policy survives exec and is inherited by threads and children, so it is set once, before the rank starts. The
default profile of container engines forbids these calls without CAP_SYS_NICE. The kernel's default policy then
takes memory from the node of the thread that touches it first. See set_mempolicy(2) and linux/mempolicy.h.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

# By the kernel's numbers.
MODES = ("default", "preferred", "bind", "interleave", "local", "preferred-many", "weighted-interleave")
REFUSED = "refused"
UNKNOWN = "unknown"

_SET, _GET = 238, 239  # x86-64's system call numbers
_MODE_BITS = 0x0FFF  # the bits above are flags
_BITS = 1024  # the most nodes that any kernel supports


@dataclass(frozen=True)
class MemoryPolicy:
    """Where the rank's memory comes from: `mode` "default", "preferred" or "interleave", on `nodes`."""

    mode: str = "default"
    nodes: tuple[int, ...] = ()


def current() -> str:
    """One of MODES, REFUSED if the container forbids the call, or UNKNOWN if the kernel has no answer."""
    import ctypes  # imported where used: it takes time, and most machines have one NUMA node

    mode = ctypes.c_int(0)
    try:
        _call(_GET, ctypes.byref(mode), None, ctypes.c_ulong(0), None, ctypes.c_ulong(0))
    except PermissionError:
        return REFUSED
    except OSError:  # a kernel without NUMA
        return UNKNOWN
    number = mode.value & _MODE_BITS
    return MODES[number] if number < len(MODES) else UNKNOWN


def apply(policy: MemoryPolicy) -> None:
    """Set the policy of the calling thread. Raises OSError; PermissionError if the container forbids the call."""
    import ctypes

    mask = (ctypes.c_ulong * (_BITS // 64))()
    for node in policy.nodes:
        mask[node // 64] |= 1 << node % 64
    nodes = mask if policy.nodes else None
    _call(_SET, ctypes.c_int(MODES.index(policy.mode)), nodes, ctypes.c_ulong(_BITS if policy.nodes else 0))


def _call(number: int, *arguments: object) -> None:
    import ctypes

    if os.uname().machine != "x86_64":
        raise OSError(0, "the numbers of these system calls are known for x86-64 only")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(number), *arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
