"""What ccl's ranks of one node need in /dev/shm to talk through shared memory. Torch-free.

libfabric's shm provider (of Intel MPI 2021.18) makes a file of 64 MiB a rank, of which it fills 25, but it works
only where 64 MiB for each online CPU of the host are free, however few of them the container may use. Each rank
looks for itself at its start: where all find less they talk over tcp without a word, and where some find less,
because others have filled theirs already, they cannot meet at all.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

DIRECTORY = "/dev/shm"  # noqa: S108  the provider's own choice
MEBIBYTE = 1 << 20
FILE_BYTES = 64 * MEBIBYTE
FILLED_BYTES = 26 * MEBIBYTE
# OpenMP's and the data loading workers' small files come and go beside.
SPARE_BYTES = 2 * MEBIBYTE


@dataclass(frozen=True)
class Space:
    """The file system at /dev/shm, in bytes."""

    size: int
    free: int


def read(directory: str = DIRECTORY) -> Space:
    """Nothing at all where there is no such place."""
    try:
        found = os.statvfs(Path(directory))
    except OSError:
        return Space(0, 0)
    return Space(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)


def online_cpus() -> int:
    """As libfabric counts them: those of the host, whatever the container's CPU set."""
    return os.sysconf("SC_NPROCESSORS_ONLN")


def needed(ranks: int, cpus: int) -> int:
    """Free bytes with which all `ranks` of a node get shared memory for sure; a single one needs none.

    `cpus`: the online ones of the host.
    """
    if ranks == 1:
        return 0
    return max(cpus * FILE_BYTES + (ranks - 1) * FILLED_BYTES, ranks * FILE_BYTES) + SPARE_BYTES


def option(ranks: int, cpus: int) -> str:
    """Docker's option for a container that has enough, rounded up to whole GiB."""
    return f"--shm-size {-(-needed(ranks, cpus) // (1024 * MEBIBYTE))}g"
