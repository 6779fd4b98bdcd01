"""The engine of a user who is not root, from an image in a file to a trained model and its measurement.

CTS_ENGINE chooses one of users_machine.ENGINES: by default rootless podman, for a user without Docker.
"""

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import containers
from tests.cluster.conftest import inv
from tests.cluster.users_machine import PODMAN, UID, UsersMachine, users_machine
from tests.image.train_runs import reviews
from tooling.engine import docker
from tooling.image.recipe import PIN_LABEL

ENGINE = os.environ.get("CTS_ENGINE", PODMAN)
STEPS = 4
OWN_NETWORKS = {"podman": {"podman"}, "docker": {"bridge", "host", "none"}}


@pytest.fixture
def machine(image: str, tiny_model: Path, tmp_path: Path) -> Iterator[UsersMachine]:
    """A machine with the exported image, a tiny model and rows in the user's home folder."""
    try:
        with users_machine(tmp_path, ENGINE) as started:
            exported = inv("export", "--format=docker", f"--output={started.home / 'stack.tar'}")
            assert exported.returncode == 0, exported.stderr
            (started.home / "stack.tar").chmod(0o644)
            shutil.copytree(tiny_model, started.home / "data" / "tiny")
            (started.home / "data" / "train.csv").write_text(reviews(22))
            print(started.version())
            yield started
    finally:
        for folder in ("home", "docker"):  # the image, several times: gigabytes
            shutil.rmtree(tmp_path / folder, ignore_errors=True)


@pytest.mark.timeout(1800)
def test_a_user_trains_on_two_nodes_exports_and_measures(machine: UsersMachine, image: str) -> None:
    if machine.client == "podman":
        nothing = machine.inv("up", "--", "true")
        assert nothing.returncode == 2
        assert nothing.stderr.splitlines()[-1].startswith("podman has no image cpu-train-stack:"), nothing.stderr

    _train(machine, image)
    # The engine has the image now.
    chosen = f"--image={docker.read_image(image).id}"
    _follow(machine, chosen)
    _export(machine, chosen)
    _measure(machine, chosen)
    listed = machine.run(machine.client, "ps", "--all", "--quiet").stdout
    networks = machine.run(machine.client, "network", "ls", "--format={{.Name}}").stdout
    assert (listed, {*networks.split()}) == ("", OWN_NETWORKS[machine.client])


def _train(machine: UsersMachine, image: str) -> None:
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


def _follow(machine: UsersMachine, chosen: str) -> None:
    """Each node has its own cores, although some engines have no cpusets for this user."""
    command = ("--", "sh", "-c", "grep Cpus_allowed_list /proc/self/status; exec sleep 600")
    detached = machine.inv("up", "--detach", chosen, *command)
    assert detached.returncode == 0, detached.stderr
    assert machine.inv("status").stdout.count("running") == 2
    deadline = time.monotonic() + containers.TIMEOUT_SECONDS
    while len(shown := machine.inv("logs", "--name=cluster").stdout.splitlines()) < 2:
        assert time.monotonic() < deadline, shown
    assert len({line.split()[-1] for line in shown}) == 2, shown
    down = machine.inv("down")
    assert down.returncode == 0, down.stderr


def _export(machine: UsersMachine, chosen: str) -> None:
    for form in ("oci", "charliecloud"):
        done = machine.inv("export", chosen, f"--format={form}", f"--output={form}")
        assert done.returncode == 0, done.stderr
    folder = machine.home / "oci"
    document = folder / "index.json"
    for _ in range(3):  # the manifest, its configuration, and with some engines an index between them
        found = json.loads(document.read_text())
        if "manifests" in found:
            digest = found["manifests"][0]["digest"]
        elif "layers" in found:
            digest = found["config"]["digest"]
        document = folder / "blobs" / digest.replace(":", "/")
    configuration = json.loads(document.read_text())["config"]
    assert PIN_LABEL in configuration["Labels"]
    shutil.rmtree(folder)
    folder = machine.home / "charliecloud"
    facts = json.loads((folder / "opt/cpu-train-stack/image.json").read_text())
    assert f"--image={facts['image']}" == chosen
    assert configuration["Env"] == (folder / "ch/environment").read_text().splitlines()
    assert not list((folder / "dev").iterdir())
    assert (folder / "opt/venv/bin/python").is_symlink()
    shutil.rmtree(folder)


def _measure(machine: UsersMachine, chosen: str) -> None:
    """On one CPU, which some engines cannot choose with a cpuset for this user."""
    job = ("--job=tiny", "--recipe=ours", "--ranks=1", "--steps=2", "--repeats=1")
    done = machine.inv("bench", "train", chosen, "--cpus=0", *job, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert document["cpus"] == "0"
    (row,) = document["rows"]
    assert (row["reason"], row["threads"], row["steps"]) == (None, 1, [2]), row
