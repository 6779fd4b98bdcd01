"""What oneCCL needs to know before its first group: who is local, which interface, which transport.

Every variable is one of oneCCL's or libfabric's own; one that the user has set stays as it is.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, MutableMapping

from entrypoints.environment import DistributedEnvironment
from entrypoints.errors import UsageError

PACKAGE = "oneccl_bindings_for_pytorch"
# What libfabric's shared-memory provider reserves in /dev/shm for each process (libfabric of Intel MPI 2021.18).
SHARED_MEMORY = "/dev/shm"  # noqa: S108  the provider's own choice
SHARED_MEMORY_BYTES = 64 << 20


def default_backend() -> str:
    """The backend of a job that names none."""
    return "ccl" if installed() else "gloo"


def variables(environment: DistributedEnvironment, interface: str) -> dict[str, str]:
    """oneCCL's variables for one rank, without those of its workers: they are the plan's, see `communication`."""
    several_local = environment.local_world_size > 1
    return {
        # Rank and size come from us, not from the variables of a launcher that oneCCL would look for.
        "CCL_PROCESS_LAUNCHER": "none",
        "CCL_LOCAL_RANK": str(environment.local_rank),
        "CCL_LOCAL_SIZE": str(environment.local_world_size),
        "CCL_ATL_TRANSPORT": "ofi",
        "CCL_ATL_SHM": "1" if several_local else "0",
        "FI_PROVIDER": "tcp,shm" if several_local else "tcp",
        "FI_TCP_IFACE": interface,
        # Unless the plan has kept cores for workers: one that shares its core with compute threads costs a
        # thousandfold in latency, so whoever waits for a collective moves it on.
        "CCL_WORKER_OFFLOAD": "0",
        # Its warnings are about what is chosen here on purpose.
        "CCL_LOG_LEVEL": "error",
    }


def prepare(environ: MutableMapping[str, str], wanted: Mapping[str, str]) -> None:
    """Sets what the user has not set."""
    for name, value in wanted.items():
        environ.setdefault(name, value)


def shared_memory_warning(
    local_world_size: int, environ: Mapping[str, str], directory: str = SHARED_MEMORY
) -> str | None:
    """What is lost where the ranks of this node find too little room in `directory`; None where nothing is.

    libfabric passes over its shared-memory provider then, without a word, and the ranks talk over tcp.
    """
    if local_world_size == 1 or environ.get("CCL_ATL_SHM", "0") == "0":
        return None
    space = os.statvfs(directory)
    free, wanted = space.f_bavail * space.f_frsize, local_world_size * SHARED_MEMORY_BYTES
    if free >= wanted:
        return None
    return (
        f"{directory} has {free >> 20} MiB free, expected {wanted >> 20} MiB for {local_world_size} ranks: they "
        "talk over tcp, with half the bandwidth of shared memory; give the container more "
        "(docker run --shm-size 1g)"
    )


def installed() -> bool:
    """Whether this image has the backend."""
    return importlib.util.find_spec(PACKAGE) is not None


def load() -> None:
    """Registers the backend with torch. Raises UsageError with the package's own line if it cannot be loaded."""
    try:
        __import__(PACKAGE)
    except ImportError as error:
        raise UsageError(f"backend 'ccl' cannot be loaded: {error}; --backend gloo does without it") from error
