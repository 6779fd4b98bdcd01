"""oneCCL's variables for a rank."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from entrypoints import ccl
from entrypoints.environment import DistributedEnvironment


def place(local_rank: int, local_world_size: int, node_rank: int = 0, nodes: int = 1) -> DistributedEnvironment:
    return DistributedEnvironment(
        rank=node_rank * local_world_size + local_rank,
        world_size=nodes * local_world_size,
        local_rank=local_rank,
        local_world_size=local_world_size,
        node_rank=node_rank,
        master_addr="node-0",
        master_port=29500,
        launcher="torchrun",
    )


@pytest.mark.parametrize(
    ("environment", "providers", "shared_memory"),
    [
        (place(0, 1), "tcp", "0"),
        (place(1, 2), "tcp,shm", "1"),
        (place(0, 1, node_rank=1, nodes=2), "tcp", "0"),
        (place(1, 2, node_rank=1, nodes=2), "tcp,shm", "1"),
    ],
    ids=["alone", "two ranks on one node", "one rank a node", "two ranks a node"],
)
def test_shared_memory_is_used_where_ranks_share_a_node(
    environment: DistributedEnvironment, providers: str, shared_memory: str
) -> None:
    chosen = ccl.variables(environment, "eth0")
    assert chosen["FI_PROVIDER"] == providers
    assert chosen["CCL_ATL_SHM"] == shared_memory
    assert (chosen["CCL_LOCAL_RANK"], chosen["CCL_LOCAL_SIZE"]) == (
        str(environment.local_rank),
        str(environment.local_world_size),
    )


def test_oneccl_is_not_left_to_guess_launcher_and_interface() -> None:
    chosen = ccl.variables(place(0, 2, nodes=2), "ib0")
    assert chosen["CCL_PROCESS_LAUNCHER"] == "none"
    assert chosen["FI_TCP_IFACE"] == "ib0"


def test_without_the_plans_cores_for_workers_there_are_none() -> None:
    assert ccl.variables(place(0, 2), "lo")["CCL_WORKER_OFFLOAD"] == "0"
    environ = {"CCL_WORKER_OFFLOAD": "1"}
    ccl.prepare(environ, ccl.variables(place(0, 2), "lo"))
    assert environ["CCL_WORKER_OFFLOAD"] == "1"


def test_a_variable_that_the_user_has_set_stays() -> None:
    environ = {"FI_PROVIDER": "verbs", "CCL_LOG_LEVEL": "debug"}
    ccl.prepare(environ, ccl.variables(place(0, 1), "eth0"))
    assert environ["FI_PROVIDER"] == "verbs"
    assert environ["CCL_LOG_LEVEL"] == "debug"
    assert environ["FI_TCP_IFACE"] == "eth0"


def test_too_little_shared_memory_is_said_where_several_ranks_want_it(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    too_many = free // ccl.SHARED_MEMORY_BYTES + 1
    shared = {"CCL_ATL_SHM": "1"}
    assert ccl.shared_memory_warning(2, shared, str(tmp_path)) is None
    assert ccl.shared_memory_warning(too_many, {"CCL_ATL_SHM": "0"}, str(tmp_path)) is None
    warning = ccl.shared_memory_warning(too_many, shared, str(tmp_path))
    assert warning is not None
    assert f"expected {too_many * 64} MiB for {too_many} ranks" in warning
