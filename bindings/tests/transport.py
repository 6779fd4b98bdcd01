"""oneCCL's variables for the ranks of one host, as `run` sets them, for checks that `run` does not start."""

from __future__ import annotations

from cpu_train_stack.placement.detect import DistributedEnvironment
from cpu_train_stack.plan import ccl


def variables(rank: int, ranks: int) -> dict[str, str]:
    """For ranks that communicate through shared memory."""
    place = DistributedEnvironment(
        rank=rank,
        world_size=ranks,
        local_rank=rank,
        local_world_size=ranks,
        node_rank=0,
        master_addr="127.0.0.1",
        master_port=29500,
        launcher="torchrun",
    )
    return ccl.group_variables(place, "lo", shared_memory=True)
