"""Leftovers of a cluster are found, and short clusters leave none."""

import json
import subprocess
import sys
import uuid

import pytest

from tests.cluster.conftest import inv
from tooling.checks import soak
from tooling.cluster import leftovers
from tooling.cluster.compose import PROJECT_PREFIX

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


def test_a_process_of_a_removed_container_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "SETTLE_SECONDS", 0.5)
    container, another = (uuid.uuid4().hex * 2 for _ in range(2))
    shim = [sys.executable, "-c", WAITS, "-namespace", "moby", "-id", container]
    with subprocess.Popen(shim, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert leftovers.orphans(frozenset({container})) == [f"process {process.pid}"]
        assert leftovers.orphans(frozenset({another})) == [], "another cluster's is its own affair"
        process.kill()
    assert leftovers.orphans(frozenset({container})) == []


def test_short_clusters_of_mpirun_succeed_and_leave_nothing(image: str) -> None:
    done = inv("dev", "soak", "--jobs=2", "--launcher=mpirun")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failed, 0 had leftovers" in done.stdout
    result = json.loads((soak.FOLDER / "result.json").read_text())
    assert [(job["exit_code"], job["right"], job["left"]) for job in result["jobs"]] == [(0, True, [])] * 2
    assert result["launcher"] == "mpirun"


def test_a_job_that_leaves_something_has_failed() -> None:
    job = soak.SoakJob(number=1, exit_code=0, right=True, seconds=3.0, left=("process 7",))
    assert job.failed
    assert soak.describe(job) == "left process 7"
