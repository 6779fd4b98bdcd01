"""Jobs of Slurm: the batch scripts of ./inv manifest slurm run an image of ./inv export without root."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import inv
from tests.cluster.slurm_cluster import SlurmCluster, slurm_cluster
from tests.image.train_runs import reviews
from tooling.pins import parse

# More than a job trains in this test.
ENDLESS = 1_000_000


@pytest.fixture(scope="module")
def cluster(image: str, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A cluster with the exported image at /shared/stack, and a tiny model and rows at /shared/data."""
    shared = tmp_path_factory.mktemp("shared")
    for name, mode in (("data", 0o755), ("output", 0o777)):
        (shared / name).mkdir()
        (shared / name).chmod(mode)
    shared.chmod(0o755)
    shutil.copytree(tiny_model, shared / "data" / "tiny")
    (shared / "data" / "train.csv").write_text(reviews(22))
    exported = inv("export", "--format=charliecloud", f"--output={shared / 'stack'}")
    assert exported.returncode == 0, exported.stderr
    try:
        with slurm_cluster(parse.load().pin(), shared) as started:
            yield started
    finally:
        shutil.rmtree(shared / "stack")  # gigabytes


def test_a_job_is_requeued_before_its_time_limit_and_can_be_cancelled(cluster: SlurmCluster) -> None:
    job = submitted(cluster, "limit", ENDLESS, "--time=2:00:00")
    wait_for_checkpoint(cluster, job, "limit")
    # slurmctld compares jobs with their limits every 30 s, and signals this one at the next time.
    cluster.call("scontrol", "update", f"JobId={job}", "EndTime=now+140")
    cluster.wait(job, lambda: cluster.show(job, "Restarts") == "1")
    cluster.wait(job, lambda: f"training: {ENDLESS} steps from step " in cluster.log(job))
    log = cluster.log(job)
    assert "DUE TO JOB REQUEUE" in log, log
    assert log.count("ranks     2 on 2 nodes, started by Slurm") == 2, log
    assert log.count("group     ccl, ") == 2, log
    cluster.call("scancel", job)
    cluster.wait_until_idle()
    assert (cluster.show(job, "JobState"), cluster.show(job, "Restarts")) == ("CANCELLED", "1")


def submitted(cluster: SlurmCluster, name: str, steps: int, *options: str) -> str:
    """The number of a job on two nodes that writes to /shared/output/`name`."""
    job = (f"--name={name}", "--image=/shared/stack", "--data=/shared/data", "--output=/shared/output")
    train = (
        *("train", "--model_name_or_path=/data/tiny", "--train_file=/data/train.csv"),
        *(f"--output_dir=/output/{name}", f"--max_steps={steps}", "--save_steps=10", "--max_seq_length=32"),
    )
    script = inv("manifest", "slurm", *job, *options, "--", *train)
    assert script.returncode == 0, script.stderr
    (cluster.shared / f"{name}.sh").write_text(script.stdout)
    return cluster.call("sbatch", "--parsable", f"/shared/{name}.sh").strip()


def wait_for_checkpoint(cluster: SlurmCluster, job: str, name: str) -> None:
    output = cluster.shared / "output" / name
    cluster.wait(job, lambda: bool(list(output.glob("checkpoint-*"))))
