"""Jobs of Slurm: the batch scripts of ./inv manifest slurm run an image of ./inv export without root."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.conftest import inv
from tests.cluster.slurm_cluster import NODES, SlurmCluster, docker, slurm_cluster
from tests.image.train_runs import reviews
from tooling.hpc.slurm import SIF, SQUASHFS
from tooling.pins import parse

FOLDER = "stack"
SUFFIXES = {"apptainer": SIF, "enroot": SQUASHFS}
# Names a git checkout of enroot, which no distribution has.
ENROOT = os.environ.get("CTS_ENROOT")
# More than a job trains in this test.
ENDLESS = 1_000_000


@pytest.fixture(scope="module")
def cluster(image: str, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A cluster with the image at /shared/stack, for charliecloud, and a tiny model and rows at /shared/data."""
    shared = tmp_path_factory.mktemp("shared")
    for name, mode in (("data", 0o755), ("output", 0o777)):
        (shared / name).mkdir()
        (shared / name).chmod(mode)
    shared.chmod(0o755)
    shutil.copytree(tiny_model, shared / "data" / "tiny")
    (shared / "data" / "train.csv").write_text(reviews(22))
    debian = parse.load().pin(os.environ.get("CTS_SLURM_ROW", "2.15"))  # of Debian 13; 2.13 is of Debian 12
    exported = inv("export", "--format=charliecloud", f"--output={shared / FOLDER}")
    assert exported.returncode == 0, exported.stderr
    try:
        with slurm_cluster(debian, shared, Path(ENROOT) if ENROOT else None) as started:
            yield started
    finally:
        shutil.rmtree(shared / FOLDER)  # gigabytes


@pytest.fixture
def export(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Exports the image in a format, as one file, and returns the file's name in /shared."""
    monkeypatch.setenv("PATH", str(cluster.programs), prepend=os.pathsep)
    files = []

    def export(form: str) -> str:
        files.append(file := cluster.shared / f"stack{SUFFIXES[form]}")
        done = inv("export", f"--format={form}", f"--output={file}", timeout=900)
        assert done.returncode == 0, done.stderr
        return file.name

    yield export
    for file in files:
        file.unlink(missing_ok=True)  # gigabytes


def test_a_job_stops_before_its_time_limit_resumes_and_can_be_cancelled(cluster: SlurmCluster) -> None:
    job = submitted(cluster, "limit", *train("limit", ENDLESS, save_steps=ENDLESS), options=("--time=2:00:00",))
    try:
        cluster.wait(job, lambda: f"training: {ENDLESS} steps, ranks: 2" in cluster.log(job))
        # As Slurm before the time limit, without the steps until then, which would slow other tests down.
        cluster.call("scancel", "--batch", "--signal=USR1", job)
        cluster.wait(job, lambda: cluster.show(job, "Restarts") == "1")
        log = cluster.log(job)
        assert f"job {job}: stopped before the time limit: requeueing" in log, log
        stopped = re.search(r"stopped at step (\d+), with a checkpoint", log)
        assert stopped, log
        cluster.wait(
            job, lambda: f"training: {ENDLESS} steps from step {stopped[1]}, ranks: 2" in cluster.log(job)
        )
        assert cluster.log(job).count("ranks     2 on 2 nodes, started by Slurm") == 2
        assert cluster.log(job).count("group     ccl, ") == 2
    finally:  # also of a failed test: its steps would slow other tests down
        cluster.call("scancel", job)
    cluster.wait_for_nodes()
    assert (cluster.show(job, "JobState"), cluster.show(job, "Restarts")) == ("CANCELLED", "1")


def test_a_job_whose_nodes_die_resumes_on_the_other_nodes(cluster: SlurmCluster) -> None:
    job = submitted(cluster, "death", *train("death", ENDLESS, save_steps=50))
    try:
        output = cluster.shared / "output" / "death"
        for position, restarts in ((1, "1"), (0, "2")):  # the batch script runs on the first node
            wait_for_checkpoint(cluster, job, output)
            dead = nodes(cluster, job)[position]
            with killed(cluster, dead):
                wait_for_restart(cluster, job, restarts)
                assert dead not in nodes(cluster, job)
        wait_for_checkpoint(cluster, job, output)
        assert len(re.findall(rf"training: {ENDLESS} steps from step \d+, ranks: 2", cluster.log(job))) == 2
        assert cluster.log(job).count("group     ccl, ") == 3
    finally:
        cluster.call("scancel", job)
    cluster.wait_for_nodes()


def test_a_job_that_starts_on_a_dead_node_is_requeued(cluster: SlurmCluster, export: Callable[[str], str]) -> None:
    """And then trains with two ranks on each node."""
    image = export("apptainer")
    # srun fails at once, before slurmctld knows about the node.
    with killed(cluster, NODES[1]):
        command = train("early", 4, save_steps=4)
        job = submitted(cluster, "early", *command, image=image, options=("--ranks-per-node=2",))
        cluster.wait(job, lambda: cluster.show(job, "JobState") == "COMPLETED")
        assert cluster.show(job, "Restarts") == "1"
        assert nodes(cluster, job) == [NODES[0], NODES[2]]
    assert f"job {job}: a node does not answer: requeueing" in cluster.log(job)
    check_result(cluster, "early", world_size=4)


@pytest.mark.skipif(ENROOT is None, reason="CTS_ENROOT names no git checkout of enroot")
def test_enroot_runs_the_ranks_of_a_job(cluster: SlurmCluster, export: Callable[[str], str]) -> None:
    job = submitted(cluster, "squashfs", *train("squashfs", 4, save_steps=4), image=export("enroot"))
    cluster.wait(job, lambda: cluster.show(job, "JobState") == "COMPLETED")
    check_result(cluster, "squashfs", world_size=2)


def check_result(cluster: SlurmCluster, name: str, world_size: int) -> None:
    result = json.loads((cluster.shared / "output" / name / "result.json").read_text())
    assert (result["launcher"], result["world_size"], result["nodes"]) == ("Slurm", world_size, 2)
    assert (result["backend"], result["steps"], len(set(result["weights_sha256"]))) == ("ccl", 4, 1)


def wait_for_checkpoint(cluster: SlurmCluster, job: str, output: Path) -> None:
    """Waits for a checkpoint that is not there yet."""
    known = {*output.glob("checkpoint-*")}
    cluster.wait(job, lambda: not known.issuperset(output.glob("checkpoint-*")))


def wait_for_restart(cluster: SlurmCluster, job: str, restarts: str) -> None:
    """Waits until the job runs again, after this number of restarts."""
    cluster.wait(job, lambda: cluster.show(job, "Restarts") == restarts)
    cluster.wait(job, lambda: cluster.show(job, "JobState") == "RUNNING")


@contextmanager
def killed(cluster: SlurmCluster, node: str) -> Iterator[None]:
    """Inside the block, the node is dead, and slurmctld does not know."""
    docker("kill", cluster.names[node])
    try:
        yield
    finally:
        docker("start", cluster.names[node])
        cluster.wait_for_nodes("idle", "mix", "alloc")


def train(name: str, steps: int, save_steps: int) -> tuple[str, ...]:
    return (
        *("train", "--model_name_or_path=/data/tiny", "--train_file=/data/train.csv", "--max_seq_length=32"),
        *(f"--output_dir=/output/{name}", f"--max_steps={steps}", f"--save_steps={save_steps}"),
    )


def submitted(
    cluster: SlurmCluster, name: str, *command: str, image: str = FOLDER, options: Sequence[str] = ()
) -> str:
    """The number of a job on two nodes."""
    job = (f"--name={name}", f"--image=/shared/{image}", "--data=/shared/data", "--output=/shared/output")
    script = inv("manifest", "slurm", *job, *options, "--", *command)
    assert script.returncode == 0, script.stderr
    (cluster.shared / f"job-{name}.sh").write_text(script.stdout)
    return cluster.call("sbatch", "--parsable", f"/shared/job-{name}.sh").strip()


def nodes(cluster: SlurmCluster, job: str) -> list[str]:
    return cluster.call("scontrol", "show", "hostnames", cluster.show(job, "NodeList")).split()
