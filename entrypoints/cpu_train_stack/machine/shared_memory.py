"""The room in /dev/shm that the ccl ranks of a node need to communicate through shared memory. Torch-free.

libfabric's shm provider (of Intel MPI 2021.18) creates a file for each oneCCL worker of a rank, but works only if
there is room for one file for each online CPU of the host, however few of them the container may use. Each rank
checks this for itself when it starts. If all ranks find too little room, they silently use TCP. If only some ranks
do, because the files of the other ranks have filled it, the ranks cannot connect at all.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

DIRECTORY = "/dev/shm"  # noqa: S108 - the provider's choice
MEBIBYTE = 1 << 20
# Messages in flight that a rank's file has room for. With the provider's default of 1024 a file has 64 MiB, and a
# host of 128 CPUs would need 8 GiB; with 256 the collectives of two ranks are as fast.
QUEUE_LENGTH = 256
FILE_BYTES = 16 * MEBIBYTE
# OpenMP and the data loading workers create and delete small files too.
SPARE_BYTES = 2 * MEBIBYTE
# libfabric's shm provider maps a file of each rank of the node, PROCESS:USER:NUMBER.
_FILE = re.compile(r"/\d+:\d+:\d+( \(deleted\))?")


@dataclass(frozen=True)
class Space:
    """The file system at /dev/shm, in bytes."""

    size: int
    free: int


def read(directory: str = DIRECTORY) -> Space:
    """Zero bytes if the directory does not exist."""
    try:
        found = os.statvfs(Path(directory))
    except OSError:
        return Space(0, 0)
    return Space(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)


def online_cpus() -> int:
    """The number of CPUs as libfabric counts them: the host's, whatever the container's CPU set."""
    return os.sysconf("SC_NPROCESSORS_ONLN")


def workers(environ: Mapping[str, str]) -> int:
    """oneCCL's workers of a rank, which have a file each, also those without a thread: CCL_WORKER_COUNT.

    `plan.ccl` refuses a value that is not a number.
    """
    found = environ.get("CCL_WORKER_COUNT", "")
    return max(1, int(found)) if found.isdecimal() else 1


def needed(ranks: int, cpus: int, workers: int = 1) -> int:
    """Free bytes that guarantee shared memory to all `ranks` of a node; a single rank needs none.

    `cpus`: the host's online CPUs. `workers`: of each rank.
    """
    if ranks == 1:
        return 0
    # The last rank may check after the others have filled their files.
    return (max(cpus, workers) + (ranks - 1) * workers) * FILE_BYTES + SPARE_BYTES


def option(ranks: int, cpus: int, workers: int = 1) -> str:
    """Docker's option for a container with enough shared memory, rounded up to full GiB."""
    return f"--shm-size {-(-needed(ranks, cpus, workers) // (1024 * MEBIBYTE))}g"


def is_in_use(mapped_files: Iterable[str]) -> bool:
    """Whether a ccl rank that has mapped these files exchanges data through shared memory."""
    return any(_FILE.search(file) for file in mapped_files)
