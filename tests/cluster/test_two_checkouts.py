"""Two checkouts on one machine: neither sees, replaces or removes what the other has in the engine."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.conftest import INV, Running, containers, inv, no_cluster_left
from tests.containers import BUILD_SECONDS, BUILD_TEST_SECONDS
from tooling.basis import identity
from tooling.basis.paths import CACHE, ROOT
from tooling.engine import docker as docker_client
from tooling.pins import parse

NAME = "same"
# Takes steps until /data/end exists, so that a disturbance would have the time to show.
JOB = """
import pathlib, time, torch, torch.distributed as dist
print("begun", flush=True)
while True:
    end = torch.tensor([float(pathlib.Path("/data/end").exists())])
    dist.all_reduce(end)
    if end.item() == dist.get_world_size():
        break
    time.sleep(0.1)
print("undisturbed", flush=True)
"""
# Runs in the other checkout. Leaves a cluster there, and one that a user started meanwhile in the first checkout.
LEAVES = """
import subprocess

from tests.cluster.conftest import INV, inv

def test_that_leaves_a_cluster() -> None:
    up = ("up", "--name=left", "--detach", "--nodes=1", "--", "sleep", "600")
    assert inv(*up).returncode == 0
    assert subprocess.run([{first!r}, *up]).returncode == 0
"""
STUB = """\
#!/bin/sh
cd "$(dirname "$0")" && exec {python} -m tooling "$@"
"""


@dataclass(frozen=True)
class Checkout:
    """`image`: the tag of its default pin's image."""

    folder: Path
    identity: str
    image: str

    def inv(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        argv = [str(self.folder / "inv"), *arguments]
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=BUILD_SECONDS)

    def container(self, cluster: str) -> str:
        return f"cts-{self.identity}-{cluster}-node-0-1"


def docker(*arguments: str) -> str:
    argv = ["docker", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=120).stdout


def exists(container: str) -> bool:
    return bool(docker("ps", "--all", "--quiet", "--filter", f"name=^{container}$"))


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Checkout]:
    """A copy of this checkout with a different image, but the same wheels and Python packages."""
    folder = tmp_path / "checkout"
    skipped = shutil.ignore_patterns(".git", ".venv", ".cache", "__pycache__", ".*_cache")
    shutil.copytree(ROOT, folder, ignore=skipped)
    (folder / ".cache").mkdir()
    (CACHE / "wheels").mkdir(parents=True, exist_ok=True)
    (folder / ".cache" / "wheels").symlink_to(CACHE / "wheels")
    with (folder / "entrypoints" / "cpu_train_stack" / "cli" / "errors.py").open("a") as stream:
        stream.write("# another checkout's\n")
    (folder / "inv").write_text(STUB.format(python=sys.executable))
    own = identity.of(folder, identity.machine_id())
    made = Checkout(folder, own, f"{parse.load().pin().shared_tag}-{own}")
    yield made
    label = f"label={identity.LABEL}={own}"
    for container in docker("ps", "--all", "--quiet", "--filter", label).split():
        docker("rm", "--force", "--volumes", container)
    for network in docker("network", "ls", "--quiet", "--filter", label).split():
        docker("network", "rm", network)
    subprocess.run(["docker", "image", "rm", made.image], capture_output=True, check=False, timeout=60)


@pytest.mark.timeout(BUILD_TEST_SECONDS)
def test_another_checkouts_builds_clusters_and_tests_do_not_disturb_a_job(
    image: str, other: Checkout, scripts: Path, start: Callable[..., Running]
) -> None:
    (scripts / "job.py").write_text(JOB)
    mine = start(NAME, "--nodes=2", f"--data={scripts}", "--", "run", "/data/job.py")
    mine.wait_for(lambda output: output.count("begun") == 2)
    before = docker_client.read_image(image)

    # a cluster of the same name, of another image
    up = other.inv("up", f"--name={NAME}", "--detach", "--nodes=1", "--", "sleep", "600")
    assert up.returncode == 0, up.stderr
    theirs = json.loads(docker("inspect", other.container(NAME)))[0]
    assert theirs["Image"] != before.id
    assert theirs["Config"]["Labels"][identity.LABEL] == other.identity
    shared = docker_client.read_image(parse.load().pin().shared_tag)
    assert shared.id != theirs["Image"], "the tag that users type was taken without ./inv build"

    # each checkout sees its own cluster
    for status, nodes in ((inv("status", f"--name={NAME}"), 2), (other.inv("status"), 1)):
        assert status.stdout.count("running") == nodes, status.stdout
    assert other.inv("down").returncode == 0
    assert not exists(other.container(NAME))
    assert len(containers(NAME)) == 2

    # the clean-up after a test removes that test's clusters only
    (other.folder / "tests" / "cluster" / "test_leaves.py").write_text(LEAVES.format(first=INV))
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/cluster/test_leaves.py"]
    suite = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300, cwd=other.folder)
    try:
        assert "AssertionError: left behind: left" in suite.stdout, suite.stdout + suite.stderr
        assert not exists(other.container("left"))
        assert len(containers("left")) == 1
    finally:
        inv("down", "--name=left")

    assert docker_client.read_image(image) == before
    (scripts / "end").touch()
    assert mine.wait() == 0, mine.output()
    assert mine.output().count("undisturbed") == 2


def test_a_cluster_that_a_user_starts_meanwhile_does_not_count_as_a_tests_own(image: str) -> None:
    up = [INV, "up", "--name=users", "--detach", "--nodes=1", "--", "sleep", "600"]
    try:
        with no_cluster_left():
            subprocess.run(up, check=True, capture_output=True, timeout=120)
        assert len(containers("users")) == 1
    finally:
        inv("down", "--name=users")
