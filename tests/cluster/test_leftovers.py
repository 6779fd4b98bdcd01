"""What outlives a cluster is found, and short clusters leave nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.cluster.conftest import inv
from tooling import compose, leftovers, soak
from tooling.compose import PROJECT_PREFIX

WAITS = "import sys, time; print('ready', flush=True); time.sleep(60)"


def docker(*arguments: str) -> None:
    subprocess.run(["docker", *arguments], check=True, capture_output=True, timeout=60)


def test_containers_networks_and_volumes_of_a_cluster_are_found_and_no_others(image: str) -> None:
    name = f"left-{uuid.uuid4().hex[:8]}"
    container, network, volume = (f"{PROJECT_PREFIX}{name}{end}" for end in ("-node-0-1", "_fabric", "_data"))
    docker("create", "--name", container, image, "true")
    docker("network", "create", network)
    docker("volume", "create", volume)
    try:
        found = [f"container {container}", f"network {network}", f"volume {volume}"]
        assert leftovers.of_cluster(name) == found
        assert leftovers.of_cluster(name[:-1]) == []
    finally:
        docker("rm", container)
        docker("network", "rm", network)
        docker("volume", "rm", volume)
    assert leftovers.of_cluster(name) == []


def test_a_process_of_a_container_that_is_gone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "SETTLE_SECONDS", 0.5)
    assert leftovers.orphans() == []
    shim = [sys.executable, "-c", WAITS, "-namespace", "moby", "-id", uuid.uuid4().hex * 2]
    with subprocess.Popen(shim, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert leftovers.orphans() == [f"process {process.pid}"]
        process.kill()
    assert leftovers.orphans() == []


def test_shared_memory_counts_if_it_is_of_the_containers_user(tmp_path: Path) -> None:
    user = compose.container_user()
    for name, owner in (("ours", user), ("another's", (user[0] + 1, user[1]))):
        (tmp_path / name).touch()
        if os.geteuid() == 0:
            os.chown(tmp_path / name, *owner)
    expected = {str(tmp_path / "ours")} if os.geteuid() == 0 else set(map(str, tmp_path.iterdir()))
    assert leftovers.shared_memory(tmp_path) == expected


def test_short_clusters_of_mpirun_come_right_and_leave_nothing(image: str) -> None:
    done = inv("soak", "--jobs=2", "--launcher=mpirun")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failed, 0 left something behind" in done.stdout
    result = json.loads((soak.FOLDER / "result.json").read_text())
    assert [(job["exit_code"], job["right"], job["left"]) for job in result["jobs"]] == [(0, True, [])] * 2
    assert result["launcher"] == "mpirun"


def test_a_job_that_leaves_something_has_failed() -> None:
    job = soak.Job(number=1, exit_code=0, right=True, seconds=3.0, left=("process 7",))
    assert job.failed
    assert soak.describe(job) == "left process 7"
