"""The identity of a checkout, and that everything which it creates in an engine carries it."""

import os
import re
from pathlib import Path

from cpu_train_stack.machine.facts import Core
from tests.unit.tooling.hosts.host_jobs import job
from tooling.basis import identity
from tooling.basis.paths import ROOT
from tooling.cluster import compose
from tooling.cluster.compose import ClusterSpec
from tooling.engine import docker
from tooling.hosts import commands
from tooling.hosts.job import placeholder
from tooling.pins import parse

SPEC = ClusterSpec("test", "image", nodes=2, ranks_per_node=1, command=("train",), launcher="mpirun")


def test_the_identity_depends_on_the_folder_and_the_machine(tmp_path: Path) -> None:
    for name in ("one", "another"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("one")
    one = identity.of(tmp_path / "one", "machine")
    assert re.fullmatch(r"[0-9a-f]{8}", one)
    assert identity.of(tmp_path / "link", "machine") == one
    assert identity.of(tmp_path / "another", "machine") != one
    assert identity.of(tmp_path / "one", "another machine") != one
    assert re.fullmatch(r"[0-9a-f]{8}", identity.of(tmp_path / os.fsdecode(b"\xe9"), "machine"))
    assert identity.of(ROOT, identity.machine_id()) == identity.IDENTITY


def test_the_id_of_a_machine_without_one_is_empty(tmp_path: Path) -> None:
    assert identity.machine_id(tmp_path / "none") == ""
    (tmp_path / "id").write_text("0123\n")
    assert identity.machine_id(tmp_path / "id") == "0123"


def test_names_of_images_clusters_and_containers_have_the_identity() -> None:
    for name in (parse.load().pin().image, SPEC.project, docker.PREFIX, job().container(0)):
        assert identity.IDENTITY in name


def test_containers_and_networks_of_a_cluster_are_labelled() -> None:
    parts = compose.containers(SPEC, [Core((0,), (0,)), Core((1,), (1,))], Path("/keys"))
    made = compose.document(SPEC.project, parts, SPEC.offline)
    expected = {"cpu-train-stack.checkout": identity.IDENTITY}
    labelled = [*made["services"].values(), *made["networks"].values()]
    assert [one["labels"] for one in labelled] == [expected] * 4


def test_a_job_on_hosts_sees_only_containers_of_its_checkout() -> None:
    label = f"label=cpu-train-stack.checkout={identity.IDENTITY}"
    assert f"--filter={label}" in commands.present_jobs("one")
    places = [placeholder(index, None) for index in range(3)]
    assert f"--{label}" in commands.create(job(), 0, places)
