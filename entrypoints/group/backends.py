"""What oneCCL needs to know before its first group: who is local, which interface, which transport.

Every variable is one of oneCCL's or libfabric's own; one that the user has set stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

from entrypoints.cli import packages
from entrypoints.cli.errors import UsageError
from entrypoints.machine.shared_memory import DIRECTORY, QUEUE_LENGTH, Space, needed, option
from entrypoints.placement.detect import DistributedEnvironment


def variables(environment: DistributedEnvironment, interface: str, shared_memory: bool) -> dict[str, str]:
    """oneCCL's variables for one rank, without those of its workers: they are the plan's, see `communication`.

    `shared_memory`: the ranks of this node are several, and there is room for all of them.
    """
    chosen = {
        # Rank and size come from us, not from the variables of a launcher that oneCCL would look for.
        "CCL_PROCESS_LAUNCHER": "none",
        "CCL_LOCAL_RANK": str(environment.local_rank),
        "CCL_LOCAL_SIZE": str(environment.local_world_size),
        "CCL_ATL_TRANSPORT": "ofi",
        "CCL_ATL_SHM": "1" if shared_memory else "0",
        "FI_PROVIDER": "tcp,shm" if shared_memory else "tcp",
        "FI_TCP_IFACE": interface,
        # Unless the plan has kept cores for workers: one that shares its core with compute threads costs a
        # thousandfold in latency, so whoever waits for a collective moves it on.
        "CCL_WORKER_OFFLOAD": "0",
        # oneCCL's own default; accelerate up to 1.12 uses a group of this backend only where it is said.
        "CCL_WORKER_COUNT": "1",
        # Its warnings are about what is chosen here on purpose.
        "CCL_LOG_LEVEL": "error",
    }
    if shared_memory:
        # Large messages go piece by piece through the shared segment, not by the kernel's copy from process to
        # process, which many containers forbid besides. all_reduce of 25 MiB by two ranks: fp32 3.4 ms against
        # 5.5 ms, bf16 5.0 ms against 6.9 ms.
        chosen["FI_SHM_DISABLE_CMA"] = "1"
        chosen["FI_SHM_TX_SIZE"] = chosen["FI_SHM_RX_SIZE"] = str(QUEUE_LENGTH)
    if shared_memory and not environment.several_nodes:
        # Each rank adds up its part of all others' tensors, not a ring: 25 MiB then takes 3.1 ms, and 100 MiB
        # 10.8 ms against 16.2 ms; three and four ranks gain too. Small messages and several nodes lose by it.
        chosen["CCL_ALLREDUCE"] = "nreduce:16384-max"
    return chosen


def prepare(environ: MutableMapping[str, str], wanted: Mapping[str, str]) -> None:
    """Sets what the user has not set."""
    for name, value in wanted.items():
        environ.setdefault(name, value)


def shared_memory_warning(local_world_size: int, space: Space, cpus: int) -> str | None:
    """What is lost where the ranks of this node have too little of `space`; None where nothing is.

    `cpus`: as for `shared_memory.needed`.
    """
    wanted = needed(local_world_size, cpus)
    if space.free >= wanted:
        return None
    return (
        f"{DIRECTORY} has {space.free >> 20} MiB free, expected {wanted >> 20} MiB for {local_world_size} ranks "
        f"on a host with {cpus} CPUs: they talk over tcp, with half the bandwidth of shared memory; give the "
        f"container more (docker run {option(local_world_size, cpus)})"
    )


def load() -> None:
    """Registers the backend with torch. Raises UsageError with the package's own line if it cannot be loaded."""
    try:
        __import__(packages.CCL)
    except ImportError as error:
        raise UsageError(f"backend 'ccl' cannot be loaded: {error}: use --backend gloo instead") from error
