"""The process's limit of open files, and its folder for temporary files.

Other limits do not matter: only RDMA needs locked memory, and the tcp and shm transports do not use RDMA.
"""

from __future__ import annotations

import resource
import tempfile

from entrypoints.doctor.checks import Check, Status

# A data loading worker passes each tensor as an open file. Each other rank adds a socket or two.
ENOUGH_FILES = 4096


def open_files(soft: int) -> Check:
    """`soft`: the limit in force; -1: no limit."""
    if soft == resource.RLIM_INFINITY or soft >= ENOUGH_FILES:
        limit = "no limit" if soft == resource.RLIM_INFINITY else f"{soft} allowed"
        return Check("open files", Status.OK, limit)
    return Check(
        "open files",
        Status.WARNING,
        f"{soft} allowed: data loading workers can run out of open files",
        f"docker run --ulimit nofile=65536, or ulimit -n 65536 ({ENOUGH_FILES} at least)",
    )


def temporary_files() -> Check:
    """torch and launchers do not start without a folder for temporary files."""
    try:
        return Check("temporary files", Status.OK, f"{tempfile.gettempdir()} is writable")
    except FileNotFoundError as error:
        fix = "docker run --tmpfs /tmp (Kubernetes: mount an emptyDir at /tmp)"
        return Check("temporary files", Status.ERROR, error.strerror or str(error), fix)


def examine() -> list[Check]:
    return [open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0]), temporary_files()]
