"""oneCCL's variables for ranks of one host, for checks that do not start under `entrypoint`."""

from __future__ import annotations


def variables(rank: int, ranks: int) -> dict[str, str]:
    """Ranks that meet in shared memory."""
    return {
        "CCL_PROCESS_LAUNCHER": "none",
        "CCL_LOCAL_RANK": str(rank),
        "CCL_LOCAL_SIZE": str(ranks),
        "CCL_ATL_TRANSPORT": "ofi",
        "CCL_ATL_SHM": "1",
        "FI_PROVIDER": "tcp,shm",
        "CCL_WORKER_OFFLOAD": "0",
    }
