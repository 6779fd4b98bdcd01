"""oneCCL's variables for a rank."""

from __future__ import annotations

import pytest

from cpu_train_stack.group import backends
from cpu_train_stack.machine.shared_memory import Space
from cpu_train_stack.placement.detect import DistributedEnvironment
from cpu_train_stack.plan import ccl


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
def test_shared_memory_is_used_by_ranks_of_one_node(
    environment: DistributedEnvironment, providers: str, shared_memory: str
) -> None:
    chosen = ccl.group_variables(environment, "eth0", shared_memory == "1")
    assert chosen["FI_PROVIDER"] == providers
    assert chosen["CCL_ATL_SHM"] == shared_memory
    assert (chosen["CCL_LOCAL_RANK"], chosen["CCL_LOCAL_SIZE"]) == (
        str(environment.local_rank),
        str(environment.local_world_size),
    )


def test_oneccl_gets_launcher_and_interface() -> None:
    chosen = ccl.group_variables(place(0, 2, nodes=2), "ib0", shared_memory=True)
    assert chosen["CCL_PROCESS_LAUNCHER"] == "none"
    assert chosen["FI_TCP_IFACE"] == "ib0"


def test_large_messages_use_the_shared_segment_and_direct_sums_within_a_node() -> None:
    one_node = ccl.group_variables(place(0, 2), "lo", shared_memory=True)
    assert (one_node["FI_SHM_DISABLE_CMA"], one_node["CCL_ALLREDUCE"]) == ("1", "nreduce:16384-max")
    two_nodes = ccl.group_variables(place(0, 2, nodes=2), "eth0", shared_memory=True)
    assert two_nodes["FI_SHM_DISABLE_CMA"] == "1"
    assert "CCL_ALLREDUCE" not in two_nodes
    without = ccl.group_variables(place(0, 2), "lo", shared_memory=False)
    assert not {"FI_SHM_DISABLE_CMA", "CCL_ALLREDUCE"} & without.keys()


def test_workers_are_off_unless_the_plan_reserves_cores() -> None:
    assert ccl.group_variables(place(0, 2), "lo", shared_memory=True)["CCL_WORKER_OFFLOAD"] == "0"
    environ = {"CCL_WORKER_OFFLOAD": "1"}
    backends.set_defaults(environ, place(0, 2), "lo", shared_memory=True)
    assert environ["CCL_WORKER_OFFLOAD"] == "1"


def test_a_variable_that_the_user_has_set_is_kept() -> None:
    environ = {"FI_PROVIDER": "verbs", "CCL_LOG_LEVEL": "debug"}
    backends.set_defaults(environ, place(0, 1), "eth0", shared_memory=False)
    assert environ["FI_PROVIDER"] == "verbs"
    assert environ["CCL_LOG_LEVEL"] == "debug"
    assert environ["FI_TCP_IFACE"] == "eth0"


@pytest.mark.parametrize(
    ("ranks", "cpus", "free_mib", "said"),
    [
        (1, 64, 0, None),
        (2, 2, 50, None),
        (2, 2, 49, "expected 50 MiB for 2 ranks on a host with 2 CPUs"),
        (2, 128, 1024, "docker run --shm-size 3g"),
        (8, 2, 514, None),
    ],
    ids=[
        "alone",
        "enough",
        "too little",
        "many CPUs need more for few ranks too",
        "more ranks than CPUs",
    ],
)
def test_the_warning_for_too_little_shared_memory_has_the_right_size(
    ranks: int, cpus: int, free_mib: int, said: str | None
) -> None:
    warning = backends.shared_memory_warning(ranks, Space(size=1 << 40, free=free_mib << 20), cpus)
    assert (warning is None) == (said is None)
    assert said is None or (warning is not None and said in warning)


def test_each_worker_of_a_rank_needs_shared_memory() -> None:
    space = Space(size=1 << 40, free=100 << 20)
    assert backends.shared_memory_warning(2, space, cpus=2, workers=2) is None
    warning = backends.shared_memory_warning(2, space, cpus=2, workers=4)
    assert warning is not None
    assert "expected 130 MiB for 2 ranks with 4 oneCCL workers each" in warning


def test_empty_variables_get_the_defaults_too() -> None:
    environ = {"CCL_WORKER_COUNT": "", "CCL_ATL_SHM": "1"}
    backends.set_defaults(environ, place(0, 2), "lo", shared_memory=False)
    assert (environ["CCL_WORKER_COUNT"], environ["CCL_ATL_SHM"]) == ("1", "1")
