"""The files that a process has mapped: what is really loaded, whatever was asked for. Torch-free."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

# libfabric's shm provider: a file of each rank of the node, PROCESS:USER:NUMBER.
_SHARED_MEMORY = re.compile(r"/\d+:\d+:\d+( \(deleted\))?")


def files(maps: Path = Path("/proc/self/maps")) -> frozenset[str]:
    """Their paths as the kernel knows them, without symbolic links."""
    return frozenset(line.split(maxsplit=5)[5] for line in maps.read_text().splitlines() if line.count("/"))


def has_shared_memory(mapped: Iterable[str]) -> bool:
    """Whether ccl's ranks of this node exchange data through memory that they share."""
    return any(_SHARED_MEMORY.search(file) for file in mapped)
