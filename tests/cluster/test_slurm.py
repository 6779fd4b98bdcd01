"""A job of Slurm: the batch script of ./inv manifest slurm runs an image of ./inv export without root."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import containers
from tests.cluster.conftest import inv
from tests.cluster.slurm_cluster import SlurmCluster, slurm_cluster
from tests.image.train_runs import reviews

STEPS = 200


@pytest.fixture
def cluster(image: str, tiny_model: Path, tmp_path: Path) -> Iterator[SlurmCluster]:
    """A cluster with the exported image at /shared/stack, and a tiny model and rows at /shared/data."""
    for name, mode in (("data", 0o755), ("output", 0o777)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    tmp_path.chmod(0o755)
    shutil.copytree(tiny_model, tmp_path / "data" / "tiny")
    (tmp_path / "data" / "train.csv").write_text(reviews(22))
    with slurm_cluster(tmp_path) as started:
        exported = inv("export", "--format=charliecloud", f"--output={tmp_path / 'stack'}")
        assert exported.returncode == 0, exported.stderr
        yield started


def test_a_job_trains_on_two_nodes_and_resumes_after_it_was_requeued(cluster: SlurmCluster) -> None:
    job = ("--name=bert", "--image=/shared/stack", "--data=/shared/data", "--output=/shared/output")
    train = (
        *("train", "--model_name_or_path=/data/tiny", "--train_file=/data/train.csv", "--output_dir=/output/bert"),
        *(f"--max_steps={STEPS}", "--save_steps=10", "--max_seq_length=32"),
    )
    script = inv("manifest", "slurm", *job, "--time=2:00:00", "--", *train)
    assert script.returncode == 0, script.stderr
    (cluster.shared / "job.sh").write_text(script.stdout)
    number = cluster.call("sbatch", "--parsable", "/shared/job.sh").strip()
    output = cluster.shared / "output" / "bert"
    deadline = time.monotonic() + containers.TIMEOUT_SECONDS
    while not list(output.glob("checkpoint-*")):
        assert time.monotonic() < deadline, cluster.log(number)
        time.sleep(0.2)
    # Slurm sends this signal to the script before the time limit.
    cluster.call("scancel", "--batch", "--signal=TERM", number)
    cluster.wait(number, ["PENDING"])
    cluster.wait(number, ["COMPLETED"])
    result = json.loads((output / "result.json").read_text())
    assert (result["launcher"], result["world_size"], result["nodes"]) == ("Slurm", 2, 2)
    assert (result["backend"], result["steps"], len(set(result["weights_sha256"]))) == ("ccl", STEPS, 1)
    assert str(result["resumed_from"]).startswith("/output/bert/checkpoint-")
    assert "Restarts=1" in cluster.call("scontrol", "show", "job", number)
