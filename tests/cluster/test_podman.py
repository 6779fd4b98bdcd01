"""Rootless podman as the engine, for a user without Docker."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import containers
from tests.cluster.conftest import inv
from tests.cluster.podman_machine import UID, PodmanMachine, podman_machine
from tests.image.train_runs import reviews
from tooling.engine import docker

STEPS = 4
NETWORKS = ("network", "ls", "--format={{.Name}}")


@pytest.fixture
def machine(image: str, tiny_model: Path, tmp_path: Path) -> Iterator[PodmanMachine]:
    """A machine with the exported image, a tiny model and rows in the user's home folder."""
    try:
        with podman_machine(tmp_path) as started:
            exported = inv("export", "--format=docker", f"--output={started.home / 'stack.tar'}")
            assert exported.returncode == 0, exported.stderr
            (started.home / "stack.tar").chmod(0o644)
            shutil.copytree(tiny_model, started.home / "data" / "tiny")
            (started.home / "data" / "train.csv").write_text(reviews(22))
            yield started
    finally:
        shutil.rmtree(tmp_path / "home", ignore_errors=True)  # the image, twice: gigabytes


@pytest.mark.timeout(900)
def test_a_user_without_docker_trains_on_two_nodes(machine: PodmanMachine, image: str) -> None:
    nothing = machine.inv("up", "--", "true")
    assert nothing.returncode == 2
    assert nothing.stderr.splitlines()[-1].startswith("podman has no image cpu-train-stack:"), nothing.stderr

    train = (
        *("train", "--model_name_or_path=/data/tiny", "--train_file=/data/train.csv", "--output_dir=/output/bert"),
        *(f"--max_steps={STEPS}", "--max_seq_length=32", "--bf16"),
    )
    job = machine.inv("up", "--image=stack.tar", "--data=data", "--output=output", "--", *train)
    assert job.returncode == 0, job.stdout + job.stderr
    file = machine.home / "output" / "bert" / "result.json"
    result = json.loads(file.read_text())
    assert (result["backend"], result["nodes"], result["world_size"], result["steps"]) == ("ccl", 2, 2, STEPS)
    assert len(set(result["weights_sha256"])) == 1
    assert result["image"] == docker.read_image(image).id
    assert file.stat().st_uid == UID

    # Podman has the image now. Each node has its own cores, although podman has no cpusets for this user.
    command = ("--", "sh", "-c", "grep Cpus_allowed_list /proc/self/status; exec sleep 600")
    detached = machine.inv("up", "--detach", f"--image={result['image']}", *command)
    assert detached.returncode == 0, detached.stderr
    assert machine.inv("status").stdout.count("running") == 2
    deadline = time.monotonic() + containers.TIMEOUT_SECONDS
    while len(shown := machine.inv("logs", "--name=cluster").stdout.splitlines()) < 2:
        assert time.monotonic() < deadline, shown
    assert len({line.split()[-1] for line in shown}) == 2, shown
    down = machine.inv("down")
    assert down.returncode == 0, down.stderr
    left = [machine.run("podman", *words).stdout.split() for words in (("ps", "--all", "--quiet"), NETWORKS)]
    assert left == [[], ["podman"]]
