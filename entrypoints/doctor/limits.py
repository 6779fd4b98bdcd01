"""Limits of the process that a training job can meet, and its place for temporary files.

Of the limits only open files: locked memory matters to RDMA, which the tcp and shm transports do not use, and core
files to nobody who did not ask for them.
"""

from __future__ import annotations

import resource
import tempfile

from entrypoints.doctor.checks import Check, Status

# A data loading worker hands each tensor over as an open file, beside a socket or two for each other rank.
ENOUGH_FILES = 4096


def open_files(soft: int) -> Check:
    """`soft`: the limit in force; -1 is none."""
    if soft == resource.RLIM_INFINITY or soft >= ENOUGH_FILES:
        limit = "no limit" if soft == resource.RLIM_INFINITY else f"{soft} allowed"
        return Check("open files", Status.OK, limit)
    return Check(
        "open files",
        Status.WARNING,
        f"{soft} allowed: data loading workers can run out of them",
        f"docker run --ulimit nofile=65536, or ulimit -n 65536 ({ENOUGH_FILES} at least)",
    )


def temporary_files() -> Check:
    """torch does not start without a folder for them, nor do launchers."""
    try:
        return Check("temporary files", Status.OK, f"{tempfile.gettempdir()} can be written")
    except FileNotFoundError as error:
        mend = "docker run --tmpfs /tmp (Kubernetes: mount an emptyDir at /tmp)"
        return Check("temporary files", Status.ERROR, error.strerror or str(error), mend)


def examine() -> list[Check]:
    return [open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0]), temporary_files()]
