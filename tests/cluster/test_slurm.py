"""Jobs of Slurm: the batch scripts of ./inv manifest slurm run an image of ./inv export without root."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import inv
from tests.cluster.slurm_cluster import SlurmCluster, docker, slurm_cluster
from tests.image.train_runs import reviews
from tooling.pins import parse


@pytest.fixture(scope="module")
def stack(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The image, exported."""
    folder = tmp_path_factory.mktemp("exported") / "stack"
    exported = inv("export", "--format=charliecloud", f"--output={folder}")
    assert exported.returncode == 0, exported.stderr
    yield folder
    shutil.rmtree(folder)  # gigabytes


@pytest.fixture
def cluster(
    request: pytest.FixtureRequest, stack: Path, tiny_model: Path, tmp_path: Path
) -> Iterator[SlurmCluster]:
    """A cluster on the Debian of the row `request.param`, with a tiny model and rows at /shared/data."""
    for name, mode in (("data", 0o755), ("output", 0o777)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    tmp_path.chmod(0o755)
    shutil.copytree(tiny_model, tmp_path / "data" / "tiny")
    (tmp_path / "data" / "train.csv").write_text(reviews(22))
    with slurm_cluster(parse.load().pin(request.param), tmp_path, stack) as started:
        yield started


@pytest.mark.parametrize("cluster", ["2.13"], indirect=True, ids=["Debian 12"])
def test_a_job_with_two_ranks_per_node_is_requeued_before_its_time_limit(cluster: SlurmCluster) -> None:
    job = submitted(cluster, "limit", 1_000_000, "--ranks-per-node=2", "--time=2:00:00")
    # slurmctld compares jobs with their limits every 30 s, and signals this one at the next time.
    cluster.call("scontrol", "update", f"JobId={job}", "EndTime=now+140")
    cluster.wait(job, lambda: cluster.show(job, "Restarts") == "1")
    cluster.wait(job, lambda: "training: 1000000 steps from step " in cluster.log(job))
    log = cluster.log(job)
    assert "DUE TO JOB REQUEUE" in log, log
    assert log.count("ranks     4 on 2 nodes, started by Slurm") == 2, log
    assert log.count("group     ccl, ") == 2, log
    cluster.call("scancel", job)
    cluster.wait_until_idle()
    assert cluster.show(job, "JobState") == "CANCELLED"


@pytest.mark.parametrize("cluster", ["2.15"], indirect=True, ids=["Debian 13"])
def test_a_job_whose_node_dies_resumes_on_the_other_nodes(cluster: SlurmCluster) -> None:
    job = submitted(cluster, "death", 200)
    (dead,) = nodes(cluster, job)[1:]
    docker("kill", cluster.names[dead])
    cluster.wait(job, lambda: cluster.show(job, "JobState") == "COMPLETED")
    assert cluster.show(job, "Restarts") == "1"
    assert dead not in nodes(cluster, job)
    result = json.loads((cluster.shared / "output" / "death" / "result.json").read_text())
    assert (result["launcher"], result["world_size"], result["nodes"]) == ("Slurm", 2, 2)
    assert (result["backend"], result["steps"], len(set(result["weights_sha256"]))) == ("ccl", 200, 1)
    assert str(result["resumed_from"]).startswith("/output/death/checkpoint-")


def submitted(cluster: SlurmCluster, name: str, steps: int, *options: str) -> str:
    """The number of a job on two nodes, once it has written its first checkpoint to /shared/output/`name`."""
    job = (f"--name={name}", "--image=/shared/stack", "--data=/shared/data", "--output=/shared/output")
    train = (
        *("train", "--model_name_or_path=/data/tiny", "--train_file=/data/train.csv"),
        *(f"--output_dir=/output/{name}", f"--max_steps={steps}", "--save_steps=10", "--max_seq_length=32"),
    )
    script = inv("manifest", "slurm", *job, *options, "--", *train)
    assert script.returncode == 0, script.stderr
    (cluster.shared / f"{name}.sh").write_text(script.stdout)
    number = cluster.call("sbatch", "--parsable", f"/shared/{name}.sh").strip()
    output = cluster.shared / "output" / name
    cluster.wait(number, lambda: bool(list(output.glob("checkpoint-*"))))
    return number


def nodes(cluster: SlurmCluster, job: str) -> list[str]:
    """The job's nodes. The batch script runs on the first one."""
    return cluster.call("scontrol", "show", "hostnames", cluster.show(job, "NodeList")).split()
