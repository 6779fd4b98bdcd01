"""The containers in which `./inv bench` measures: their user, their variables and their CPUs."""

import os
import pwd
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from docker.errors import DockerException
from invoke.exceptions import Exit

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import locked
from tooling.bench import attention, collectives, launch, report, runner, scaling
from tooling.cluster import run as cluster
from tooling.cluster import users
from tooling.cluster.compose import ClusterSpec
from tooling.cluster.run import Outcome
from tooling.cluster.spec import options
from tooling.engine import docker, podman
from tooling.engine.api import PODMAN, Engine
from tooling.engine.docker import LocalImage
from tooling.image.build import Image
from tooling.image.choice import Choice

ENGINE = Engine("unix:///run/user/1000/podman/podman.sock", 2, PODMAN)


@pytest.fixture(autouse=True)
def podman_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(podman, "installed", lambda: True)


def engine(info: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        runner, "connect", lambda _endpoint: SimpleNamespace(info=lambda: info, close=lambda: None)
    )


def test_containers_get_the_variable_that_hides_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    engine({}, monkeypatch)
    assert "--env=ONEDNN_MAX_CPU_ISA" in options(runner.container(ENGINE, "sha256:1").spec(()))


@pytest.mark.parametrize(
    ("uid", "info", "words"),
    [
        (0, {}, ["--user=1000:1000"]),
        (4321, {}, ["--user=4321:100", "--group-add=4", "--group-add=999"]),
        (4321, {"Rootless": True}, ["--user=0:0"]),
        (0, {"SecurityOptions": ["name=userns"]}, ["--user=1000:1000", "--userns=host"]),
    ],
    ids=["root", "user", "rootless engine", "userns-remap"],
)
def test_a_container_reads_what_the_caller_can_read(
    uid: int, info: dict[str, Any], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(os, "getegid", lambda: 0 if uid == 0 else 100)
    monkeypatch.setattr(os, "getgroups", lambda: [999, 100, 4, 27])
    monkeypatch.setattr(users, "name_of", {27: "sudo"}.get)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    monkeypatch.delenv("SUDO_UID", raising=False)
    engine(info, monkeypatch)
    given = options(runner.container(ENGINE, "sha256:1").spec(["run", "a.py"]))
    assert {"--env=HOME=/tmp", "--cap-drop=ALL"} <= {*given}
    assert [word for word in given if word.startswith(("--user", "--group"))] == words


def test_taskset_in_the_container_starts_the_images_entrypoint_on_the_chosen_cpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine({"CPUSet": True}, monkeypatch)
    image = LocalImage("sha256:1", 1, {}, (), {"Entrypoint": ["entrypoint"]})
    monkeypatch.setattr(docker, "read_image_at", lambda _endpoint, _reference: image)
    bound = runner.container(ENGINE, image.id, "0,2").spec(["run", "a.py"])
    assert "--entrypoint=taskset" in options(bound)
    assert bound.words == ["--cpu-list", "0,2", "entrypoint", "run", "a.py"]
    free = runner.container(ENGINE, image.id).spec(["run", "a.py"])
    assert not free.entrypoint
    assert free.words == ["run", "a.py"]


@pytest.mark.parametrize("text", ["0-7", "x", "", "1-0", "-1"])
def test_cpus_that_the_engine_does_not_have_are_refused(text: str) -> None:
    engine = Engine("ssh://another", 4)
    assert runner.parse_cpus("0,2-3", engine) == (0, 2, 3)
    assert runner.parse_cpus(None, engine) == (0, 1, 2, 3)
    with pytest.raises(UsageError, match=f"--cpus is '{text}', expected CPUs of 0-3, such as"):
        runner.parse_cpus(text, engine)


def test_an_image_that_was_removed_before_the_start_is_named_with_the_fix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = subprocess.CompletedProcess([], runner.REFUSED, b"", b"Error: sha256:1: image not known")
    monkeypatch.setattr(docker, "run", lambda *_, **__: refused)
    engine({}, monkeypatch)
    monkeypatch.setattr(docker, "find_image_at", lambda *_: None)
    container = runner.container(ENGINE, "sha256:1")
    with pytest.raises(
        UsageError, match=r"^image sha256:1 is no longer in the engine .*: run the same command again$"
    ):
        container.run(["run", "a.py"], 1)
    monkeypatch.setattr(docker, "find_image_at", Mock(side_effect=DockerException("refused")))
    with pytest.raises(UsageError, match=r"^the engine at unix:.* does not answer"):
        container.run(["run", "a.py"], 1)


@pytest.mark.parametrize(
    "bench",
    [
        lambda choice: launch.run(launch.StartOptions(choice)),
        lambda choice: attention.run(attention.AttentionOptions(choice)),
        lambda choice: collectives.run(collectives.CollectivesOptions(choice)),
        lambda choice: scaling.run(scaling.ScalingOptions(choice)),
    ],
    ids=["launch", "attention", "collectives", "scaling"],
)
def test_the_image_runs_by_its_id_because_a_build_moves_its_tag(
    bench: Callable[[Choice], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def run_container(image: str, *_: object, **__: object) -> subprocess.CompletedProcess[bytes]:
        ran.append(image)
        return subprocess.CompletedProcess([], 1, b"", b"")

    def run_cluster(spec: ClusterSpec, *_: object, **__: object) -> Outcome:
        ran.append(spec.image)
        return Outcome(1)

    image = Image("cpu-train-stack:2.13", "sha256:1", 0, built=False, seconds=0.0)
    monkeypatch.setattr(Choice, "ensure", lambda _choice: (Engine("ssh://other", 2), image))
    monkeypatch.setattr(docker, "run", run_container)
    monkeypatch.setattr(cluster, "run", run_cluster)
    monkeypatch.setattr(cluster, "CLUSTERS", tmp_path)
    monkeypatch.setattr(runner, "LOGS", tmp_path)
    monkeypatch.setattr(report, "folder", lambda *_: tmp_path)
    engine({}, monkeypatch)
    with pytest.raises(Exit, match=r"^bench failed"):
        bench(Choice())
    assert ran == ["sha256:1"]


@pytest.mark.parametrize(
    "bench",
    [
        lambda choice: collectives.run(collectives.CollectivesOptions(choice)),
        lambda choice: scaling.run(scaling.ScalingOptions(choice)),
    ],
    ids=["collectives", "scaling"],
)
@pytest.mark.parametrize("text", ["[]", "{}", '{"rows": [3], "phases": [3], "ratio": "x"}'])
def test_a_document_that_the_images_bench_does_not_write_is_one_line(
    bench: Callable[[Choice], None], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_cluster(spec: ClusterSpec, *_: object, **__: object) -> Outcome:
        (tmp_path / spec.name / "output/result.json").write_text(text)
        return Outcome(0)

    image = Image("cpu-train-stack:2.13", "sha256:1", 0, built=False, seconds=0.0)
    monkeypatch.setattr(Choice, "ensure", lambda _choice: (Engine("ssh://other", 2), image))
    monkeypatch.setattr(cluster, "run", run_cluster)
    monkeypatch.setattr(cluster, "CLUSTERS", tmp_path)
    monkeypatch.setattr(report, "folder", lambda *_: tmp_path)
    with pytest.raises(UsageError, match=r"result\.json has other content than this version"):
        bench(Choice())


def test_a_refused_measurement_keeps_the_result_of_the_one_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = tmp_path / "bench/output/result.json"
    written.parent.mkdir(parents=True)
    written.write_text('{"rows": []}')

    monkeypatch.setattr(cluster, "CLUSTERS", tmp_path)
    spec = ClusterSpec("bench", "sha256:1", command=("bench",))
    with locked(tmp_path / ".bench.lock", waiting=None), pytest.raises(UsageError, match="bench is running"):
        runner.run_cluster(spec, ENGINE)
    assert written.is_file()


def test_the_result_of_an_earlier_measurement_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = tmp_path / "bench/output/result.json"
    written.parent.mkdir(parents=True)
    written.write_text('{"rows": []}')

    def run(*_: object, prepare: Callable[[], object], **__: object) -> Outcome:
        prepare()
        return Outcome(0)

    monkeypatch.setattr(cluster, "CLUSTERS", tmp_path)
    monkeypatch.setattr(cluster, "run", run)
    with pytest.raises(UsageError, match="No such file"):
        runner.run_cluster(ClusterSpec("bench", "sha256:1", command=("bench",)), ENGINE)
