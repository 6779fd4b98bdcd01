"""The Compose document: who gets which cores, what each node runs, what no document may hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from entrypoints.machine import shared_memory
from entrypoints.machine.facts import Core
from tooling.basis import yaml as yaml_text
from tooling.basis.errors import UsageError
from tooling.cluster import compose, launchers, nodes, up
from tooling.cluster import run as cluster
from tooling.cluster.compose import ClusterSpec, Mount
from tooling.cluster.follow import lines
from tooling.cluster.nodes import Node
from tooling.engine import api
from tooling.image.choice import Choice


def spec(**changes: object) -> ClusterSpec:
    values: dict[str, object] = {
        "name": "test",
        "image": "cpu-train-stack:2.13",
        "nodes": 2,
        "ranks_per_node": 1,
        "command": ("train", "--bf16"),
    }
    return ClusterSpec(**{**values, **changes})  # type: ignore[arg-type]  # one place for every field's default


def single(cpus: list[int]) -> list[Core]:
    """Cores of one hardware thread."""
    return [Core((cpu,), (cpu,)) for cpu in cpus]


def document(cluster: ClusterSpec, cores: list[int]) -> dict[str, Any]:
    return compose.document(cluster, single(cores), keys=Path("/clusters/test/ssh"))


def test_a_word_that_looks_like_a_number_stays_a_word_for_readers_of_yaml_1_2() -> None:
    """1e-3 without quotes is a text for PyYAML and a number for Compose, which then refuses the command."""
    words = ["1e-3", "5E+2", "0o17", "12", "1.5", "train", ".5e1", "1e-3x"]
    text = yaml_text.render([{"command": words}])
    assert [line[2:] for line in text.splitlines()[1:]] == [
        *("'1e-3'", "'5E+2'", "'0o17'", "'12'", "'1.5'", "train", "'.5e1'", "1e-3x")
    ]
    assert yaml.safe_load(text) == {"command": words}


def test_every_node_runs_the_images_launcher_around_the_command() -> None:
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


def test_a_dollar_sign_reaches_the_command_as_it_was_typed() -> None:
    made = document(spec(command=("run", "/data/a$b.py"), environment={"A": "$x"}), cores=[0, 1])
    service = made["services"]["node-0"]
    assert service["command"][-1] == "/data/a$$b.py"
    assert service["environment"] == {"A": "$$x"}


def test_a_variable_without_a_value_is_handed_on_without_being_written_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    made = document(spec(environment=up.variables(["HF_TOKEN", "A=b=c"])), cores=[0])
    assert made["services"]["node-0"]["environment"] == {"HF_TOKEN": None, "A": "b=c"}
    assert "hf_secret" not in str(made)


def test_variables_to_hand_on_that_are_not_set_are_refused_before_anything_is_done(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cluster, "CLUSTERS", tmp_path / "clusters")
    monkeypatch.setattr(api, "ensure", lambda _say: pytest.fail("the engine was asked for"))
    monkeypatch.setenv("SET", "1")
    request = up.Request(spec(), Choice(), env=("UNSET_A", "SET", "UNSET_B", "C=d"))
    with pytest.raises(UsageError, match="--env UNSET_A, UNSET_B: not set in your environment"):
        up.up(request)
    assert not (tmp_path / "clusters").exists()


def test_a_folder_is_mounted_read_only_unless_it_is_for_output() -> None:
    mounts = (Mount(Path("/a"), "/data"), Mount(Path("/b"), "/output", read_only=False))
    volumes = document(spec(mounts=mounts), cores=[0])["services"]["node-0"]["volumes"]
    assert [(volume["target"], volume["read_only"]) for volume in volumes] == [("/data", True), ("/output", False)]
    assert not any(volume["bind"]["create_host_path"] for volume in volumes)


@pytest.mark.parametrize("offline", [True, False], ids=["offline", "online"])
def test_only_an_offline_cluster_has_an_internal_network(offline: bool) -> None:
    network = document(spec(offline=offline), cores=[0])["networks"]["cluster"]
    assert network.get("internal", False) is offline


def test_a_cluster_of_mpiruns_has_nodes_that_wait_and_a_launcher_that_names_them() -> None:
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
    assert services["launcher"]["environment"] == {"HF_TOKEN": None, "A": "$$x"}
    for name in ("node-0", "node-1"):
        assert "command" not in services[name]
        assert "environment" not in services[name]


def test_each_end_of_ssh_gets_its_own_keys_and_no_other_read_only() -> None:
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
        ({"launcher": "mpi"}, "--launcher is 'mpi', expected torchrun or mpirun"),
        ({"memory": "much"}, "--memory is 'much', expected a size such as 64g"),
        ({"memory": "٤g"}, "--memory is '٤g', expected a size such as 64g"),
        ({"nodes": 0}, "--nodes is 0, expected 1 or more"),
        ({"ranks_per_node": -1}, "--ranks-per-node is -1, expected 1 or more"),
        ({"command": ()}, "no command: write it after --"),
    ],
    ids=["no such launcher", "no size", "digits of another script", "no nodes", "negative ranks", "no command"],
)
def test_a_cluster_that_cannot_be_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        spec(**changes)


@pytest.mark.parametrize("word", ["=x", "1A=x", "A B", ""])
def test_a_variable_that_has_no_name_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="expected NAME=VALUE"):
        up.variables([word])


def node(name: str, running: bool = False, exit_code: int = 0, finished_at: str = "", **more: object) -> Node:
    return Node(name, "p", running, exit_code, bool(more.get("oom")), finished_at, str(more.get("error", "")))


def test_the_node_that_failed_first_is_the_one_that_is_named() -> None:
    seen = [
        node("node-0", exit_code=1, finished_at="2026-01-01T00:00:05Z"),
        node("node-1", exit_code=137, finished_at="2026-01-01T00:00:04Z"),
        node("node-2", running=True),
    ]
    failed = nodes.first_failure(seen, ["node-0", "node-1", "node-2"])
    assert failed is not None
    assert (failed.name, failed.exit_code) == ("node-1", 137)
    assert failed.describe_end() == "ended by signal 9 (exit code 137)"


def test_nodes_that_ended_well_or_still_run_are_no_failure() -> None:
    assert nodes.first_failure([node("node-0"), node("node-1", running=True)], ["node-0", "node-1"]) is None


def test_a_node_whose_container_is_gone_has_failed() -> None:
    failed = nodes.first_failure([node("node-0", running=True)], ["node-0", "node-1"])
    assert failed is not None
    assert failed.name == "node-1"
    assert failed.exit_code != 0


def test_a_node_that_ran_out_of_memory_says_so() -> None:
    assert "out of memory" in node("node-0", exit_code=137, oom=True).describe_end()


@given(text=st.lists(st.sampled_from([b"a", b"\n", b"bc\n", b"\r", b"\nd"])))
def test_lines_are_whole_however_the_stream_is_cut(text: list[bytes]) -> None:
    whole = b"".join(text)
    found = list(lines(text))
    assert b"".join(found) == whole + (b"" if whole.endswith(b"\n") or not whole else b"\n")
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in found)
