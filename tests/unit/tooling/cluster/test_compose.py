"""The Compose document: cores, commands, mounts, variables, limits."""

from pathlib import Path
from typing import Any

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.machine import shared_memory
from cpu_train_stack.machine.facts import Core
from tooling.cluster import compose, launchers, up
from tooling.cluster.compose import ClusterSpec
from tooling.cluster.spec import Mount

# ./inv up ends its nodes at once.
AT_ONCE = {"HOME": "/tmp", "CPU_TRAIN_STACK_GRACE_SECONDS": "0"}


def spec(**changes: Any) -> ClusterSpec:
    values: dict[str, Any] = {
        "name": "test",
        "image": "cpu-train-stack:2.13",
        "nodes": 2,
        "ranks_per_node": 1,
        "command": ("train", "--bf16"),
    }
    return ClusterSpec(**{**values, **changes})


def single(cpus: list[int]) -> list[Core]:
    """Cores of one hardware thread."""
    return [Core((cpu,), (cpu,)) for cpu in cpus]


def document(cluster: ClusterSpec, cores: list[int]) -> dict[str, Any]:
    parts = compose.containers(cluster, single(cores), keys=Path("/clusters/test/ssh"))
    return compose.document(cluster.project, parts, cluster.offline)


def test_every_node_runs_launch_with_the_command() -> None:
    made = document(spec(nodes=2, ranks_per_node=3), cores=[4, 5, 6])
    assert list(made["services"]) == ["node-0", "node-1"]
    assert made["services"]["node-1"]["command"] == [
        "launch",
        "--nnodes=2",
        "--node-rank=1",
        "--master-addr=node-0",
        "--master-port=29500",
        "--nproc-per-node=3",
        "--",
        "train",
        "--bf16",
    ]
    assert made["services"]["node-0"]["cpuset"] == "4-5"
    assert made["services"]["node-1"]["cpuset"] == "6"


def test_a_node_of_a_large_host_has_shared_memory_for_its_ranks() -> None:
    for cpus in (2, 64, 256):
        assert compose.shm_bytes(2, cpus) >= (1 << 30) + cpus * shared_memory.FILE_BYTES
    sizes = [node["shm_size"] for node in document(spec(), cores=[0, 1])["services"].values()]
    assert sizes == [compose.shm_bytes(1, shared_memory.online_cpus())] * 2


def test_a_dollar_sign_reaches_the_command() -> None:
    made = document(spec(command=("run", "/data/a$b.py"), environment={"A": "$x"}), cores=[0, 1])
    service = made["services"]["node-0"]
    assert service["command"][-1] == "/data/a$$b.py"
    assert service["environment"] == {"A": "$$x", **AT_ONCE}


def test_the_value_of_a_variable_to_pass_on_is_not_in_the_document(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    made = document(spec(environment=up.variables(["HF_TOKEN", "A=b=c"])), cores=[0])
    assert made["services"]["node-0"]["environment"] == {"HF_TOKEN": None, "A": "b=c", **AT_ONCE}
    assert "hf_secret" not in str(made)


def test_a_folder_is_mounted_read_only_unless_it_is_for_output() -> None:
    mounts = (Mount(Path("/a"), "/data"), Mount(Path("/b"), "/output", read_only=False))
    volumes = document(spec(mounts=mounts), cores=[0])["services"]["node-0"]["volumes"]
    assert [(volume["target"], volume["read_only"]) for volume in volumes] == [("/data", True), ("/output", False)]
    assert not any(volume["bind"]["create_host_path"] for volume in volumes)


@pytest.mark.parametrize("offline", [True, False], ids=["offline", "online"])
def test_only_an_offline_cluster_has_an_internal_network(offline: bool) -> None:
    network = document(spec(offline=offline), cores=[0])["networks"]["cluster"]
    assert network.get("internal", False) is offline


def test_an_mpirun_cluster_has_nodes_that_run_sshd_and_a_launcher_that_names_the_nodes() -> None:
    cluster = spec(launcher="mpirun", nodes=2, ranks_per_node=3, environment={"HF_TOKEN": None, "A": "$x"})
    services = document(cluster, cores=[0, 1])["services"]
    assert list(services) == cluster.service_names == ["node-0", "node-1", "launcher"]
    assert services["launcher"]["command"] == [
        "mpi-launch",
        "--hosts=node-0,node-1",
        "--ranks-per-node=3",
        f"--timeout={launchers.MPI_START_SECONDS}",
        "--env=HF_TOKEN",
        "--env=A",
        "--",
        "train",
        "--bf16",
    ]
    assert services["launcher"]["environment"] == {"HF_TOKEN": None, "A": "$$x", **AT_ONCE}
    for name in ("node-0", "node-1"):
        assert services[name]["command"] == ["sshd"]
        assert services[name]["environment"] == {"HOME": "/tmp"}


def test_each_service_of_an_mpirun_cluster_has_only_its_own_keys_read_only() -> None:
    mounted = (Mount(Path("/a"), "/data"),)
    services = document(spec(launcher="mpirun", mounts=mounted), cores=[0, 1])["services"]
    for name, service in services.items():
        folders = {volume["source"]: volume["target"] for volume in service["volumes"]}
        expected = {f"/clusters/test/ssh/{name}": "/run/keys", "/clusters/test/ssh/passwd": "/etc/passwd"}
        assert folders == ({**expected, "/a": "/data"} if name != "launcher" else expected)
        assert all(volume["read_only"] for volume in service["volumes"])


def test_a_memory_limit_leaves_no_room_for_swap() -> None:
    service = document(spec(memory="2g"), cores=[0])["services"]["node-0"]
    assert (service["mem_limit"], service["memswap_limit"]) == ("2g", "2g")
    assert "mem_limit" not in document(spec(), cores=[0])["services"]["node-0"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "-x"}, "--name is '-x', expected at most 31 lower-case letters"),
        ({"name": "A"}, "--name is 'A', expected at most 31 lower-case letters"),
        ({"launcher": "mpi"}, "--launcher is 'mpi', expected torchrun or mpirun"),
        ({"memory": "much"}, "--memory is 'much', expected a size such as 64g"),
        ({"memory": "٤g"}, "--memory is '٤g', expected a size such as 64g"),
        ({"nodes": 0}, "--nodes is 0, expected 1 or more"),
        ({"ranks_per_node": -1}, "--ranks-per-node is -1, expected 1 or more"),
        ({"command": ()}, "no command: write it after --"),
        ({"command": ("",)}, "the command begins with '', expected train, run, bench or a program"),
        ({"command": ("--bf16",)}, "the command begins with '--bf16', expected train, run, bench or a program"),
    ],
    ids=[
        "dash first",
        "upper case",
        "no such launcher",
        "no size",
        "digits of another script",
        "no nodes",
        "negative ranks",
        "no command",
        "empty command",
        "only options",
    ],
)
def test_an_invalid_cluster_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        spec(**changes)
