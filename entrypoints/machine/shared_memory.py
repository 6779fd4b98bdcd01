"""What ccl's ranks of one node need in /dev/shm to talk through shared memory. Torch-free.

libfabric's shm provider (of Intel MPI 2021.18) makes a file for each rank, but it works only where there is room
for one file for each online CPU of the host, however few of them the container may use. Each rank looks for itself
at its start: where all find less they talk over tcp without a word, and where some find less, because others have
filled theirs already, they cannot meet at all.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

DIRECTORY = "/dev/shm"  # noqa: S108  the provider's own choice
MEBIBYTE = 1 << 20
# Messages under way that a rank's file has room for. With the provider's own 1024 a file is of 64 MiB, and a host
# of 128 CPUs would need 8 GiB; with 256 the collectives of two ranks are as fast.
QUEUE_LENGTH = 256
FILE_BYTES = 16 * MEBIBYTE
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
    # The last rank looks when the others may have filled their files.
    return (cpus + ranks - 1) * FILE_BYTES + SPARE_BYTES


def option(ranks: int, cpus: int) -> str:
    """Docker's option for a container that has enough, rounded up to whole GiB."""
    return f"--shm-size {-(-needed(ranks, cpus) // (1024 * MEBIBYTE))}g"
