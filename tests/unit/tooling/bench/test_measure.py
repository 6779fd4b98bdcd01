"""The containers in which `./inv bench` measures: their user, their variables and their CPUs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tooling.basis.errors import UsageError
from tooling.bench import measure
from tooling.engine import docker
from tooling.engine.api import PODMAN, Engine
from tooling.engine.docker import LocalImage

ENGINE = Engine("unix:///run/user/1000/podman/podman.sock", 2, PODMAN)


def test_containers_get_the_variable_that_hides_instructions() -> None:
    words = measure.container(ENGINE, "sha256:1").arguments()
    assert words[words.index("ONEDNN_MAX_CPU_ISA") - 1] == "--env"


@pytest.mark.parametrize(
    ("uid", "info", "words"),
    [
        (0, {}, ["--user=1000:1000", "--env=HOME=/tmp", "--cap-drop=ALL"]),
        (4321, {}, ["--user=4321:100", "--env=HOME=/tmp", "--cap-drop=ALL", "--group-add=4", "--group-add=999"]),
        (4321, {"Rootless": True}, ["--user=0:0", "--env=HOME=/tmp", "--cap-drop=ALL"]),
        (
            0,
            {"SecurityOptions": ["name=userns"]},
            ["--user=1000:1000", "--env=HOME=/tmp", "--cap-drop=ALL", "--userns=host"],
        ),
    ],
    ids=["root", "user", "rootless engine", "userns-remap"],
)
def test_a_container_reads_what_the_caller_can_read(
    uid: int, info: dict[str, Any], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(os, "getegid", lambda: 0 if uid == 0 else 100)
    monkeypatch.setattr(os, "getgroups", lambda: [999, 100, 4])
    monkeypatch.setattr(
        measure, "connect", lambda _endpoint: SimpleNamespace(info=lambda: info, close=lambda: None)
    )
    ran: list[Sequence[str]] = []

    def run(_image: str, _command: object, arguments: Sequence[str], *_: object, **__: object) -> Any:
        ran.append(arguments)
        return subprocess.CompletedProcess([], 0)

    monkeypatch.setattr(docker, "run", run)
    container = measure.container(ENGINE, "sha256:1")
    container.run(["run", "a.py"], 1)
    assert ran == [[*words, *container.arguments()]]


def test_taskset_in_the_container_starts_the_images_entrypoint_on_the_chosen_cpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    image = LocalImage("sha256:1", 1, {}, (), {"Entrypoint": ["entrypoint"]})
    monkeypatch.setattr(docker, "read_image_at", lambda _endpoint, _reference: image)
    bound = measure.container(ENGINE, image.id, "0,2")
    assert "--entrypoint=taskset" in bound.arguments()
    assert bound.words(["run", "a.py"]) == ["--cpu-list", "0,2", "entrypoint", "run", "a.py"]
    free = measure.container(ENGINE, image.id)
    assert "--entrypoint=taskset" not in free.arguments()
    assert free.words(["run", "a.py"]) == ["run", "a.py"]


@pytest.mark.parametrize("text", ["0-7", "x", "", "1-0", "-1"])
def test_cpus_that_the_engine_does_not_have_are_refused(text: str) -> None:
    engine = Engine("ssh://another", 4)
    assert measure.parse_cpus("0,2-3", engine) == (0, 2, 3)
    assert measure.parse_cpus(None, engine) == (0, 1, 2, 3)
    with pytest.raises(UsageError, match=f"--cpus is '{text}', expected CPUs of 0-3, such as"):
        measure.parse_cpus(text, engine)
