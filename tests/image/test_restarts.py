"""Restarts after killed ranks: resume from the job's checkpoint, or start again with the job's flags."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import containers
from tests.image.train_runs import line, mounts, result, reviews

# Runs a command, and kills a rank as soon as each path of the list exists; "" exists at once.
KILL_AT = """
import os, pathlib, signal, subprocess, sys, time
moments, command = (part.split("|") for part in sys.argv[1:])
job = subprocess.Popen(command)
def ranks():
    found = set()
    for folder in pathlib.Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and b"-m\\0cpu_train_stack.rank.worker" in (folder / "cmdline").read_bytes():
                found.add(int(folder.name))
        except OSError:
            pass
    return found
gone = set()
for moment in moments:
    while (moment and not pathlib.Path(moment).exists()) or not ranks() - gone:
        if job.poll() is not None:
            sys.exit(f"the job ended with {job.returncode} before {moment!r}")
        time.sleep(0.02)
    gone = ranks()
    os.kill(max(gone), signal.SIGKILL)
sys.exit(job.wait())
"""
SAVING: dict[str, object] = {
    "num_train_epochs": None,
    "max_steps": 200,
    "save_strategy": "steps",
    "save_steps": 50,
    "eval_strategy": "no",
}
LAUNCH = ("entrypoint", "launch", "--nproc-per-node=2", "--max-restarts=3", "--")


@pytest.fixture(scope="module")
def data(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Mounted as /data: a tiny model, and rows for training and evaluation."""
    folder = tmp_path_factory.mktemp("data")
    folder.chmod(0o777)
    shutil.copytree(tiny_model, folder / "tiny")
    (folder / "train.csv").write_text(reviews(22))
    (folder / "eval.csv").write_text(reviews(13))
    return folder


@pytest.fixture
def kill_at(image: str, data: Path, output_folder: Path) -> Any:
    def run(moments: list[str], *command: str) -> subprocess.CompletedProcess[str]:
        argv = ("python", "-c", KILL_AT, "|".join(moments), "|".join(command))
        return containers.run(image, *argv, docker_args=mounts(data, output_folder))

    return run


@pytest.fixture(scope="module")
def earlier(image: str, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an earlier run, with checkpoints of steps 50 and 60."""
    output = tmp_path_factory.mktemp("earlier")
    output.chmod(0o777)
    argv = ("train", *line("/output/run", **{**SAVING, "max_steps": 60}))
    done = containers.run(image, *argv, docker_args=mounts(data, output))
    assert done.returncode == 0, done.stderr
    return output / "run"


def copy(earlier: Path, folder: Path, *names: str) -> None:
    """Copies what an earlier run left, for the image's user to change."""
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    for name in names:
        shutil.copytree(earlier / name, folder / name)
    for path in folder.rglob("*"):
        path.chmod(0o777)


def test_a_folder_of_another_run_is_refused_once_and_left_alone(
    image: str, data: Path, earlier: Path, output_folder: Path
) -> None:
    """Also by a job with a name, whose restarted pods would find its folder."""
    folder = output_folder / "run"
    copy(earlier, folder, "checkpoint-60")
    argv = (*LAUNCH[1:], "train", *line("/output/run", **SAVING))
    environment = {"CPU_TRAIN_STACK_JOB": "ml/bert/1"}
    done = containers.run(image, *argv, env=environment, docker_args=mounts(data, output_folder))
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("holds an earlier run") == 1
    assert "restart" not in done.stderr
    assert [path.name for path in folder.iterdir()] == ["checkpoint-60"]


def test_a_killed_job_starts_by_its_flags_until_it_has_a_checkpoint(
    kill_at: Any, earlier: Path, output_folder: Path
) -> None:
    """Killed before it has touched the folder, before its first checkpoint, and after it."""
    run, old = output_folder / "run", output_folder / "old"
    copy(earlier, run, "checkpoint-60")
    copy(earlier, old, "checkpoint-50")
    # The checkpoint's run saved every 50 steps, this one is to save every 40.
    flags = {"overwrite_output_dir": True, "resume_from_checkpoint": "/output/old/checkpoint-50", "save_steps": 40}
    moments = ["", "/output/run/_job", "/output/run/checkpoint-120"]
    done = kill_at(moments, *LAUNCH, "train", *line("/output/run", **{**SAVING, **flags}))
    assert done.returncode == 0, done.stderr
    for number in (1, 2, 3):
        assert f"was killed by SIGKILL: restart {number} of 3" in done.stderr
    begun = re.findall(r"training: 200 steps(.*), ranks: 2", done.stderr)
    assert begun[:-1]
    assert set(begun[:-1]) == {" from step 50"}
    document = result(run)
    assert document["resumed_from"] in ("/output/run/checkpoint-120", "/output/run/checkpoint-160")
    assert document["steps"] == len(document["losses"]) == 200
    assert not (run / "checkpoint-60").exists()


def test_a_restart_by_torchrun_resumes_from_the_last_checkpoint(kill_at: Any, output_folder: Path) -> None:
    flags = line("/output/run", **SAVING)
    torchrun = ("torchrun", "--no-python", "--nproc-per-node=2", "--max-restarts=1", "entrypoint", "train", *flags)
    done = kill_at(["/output/run/checkpoint-50"], *torchrun)
    assert done.returncode == 0, done.stderr
    document = result(output_folder / "run")
    assert document["steps"] == len(document["losses"]) == 200
    resumed = int(Path(document["resumed_from"]).name.rpartition("-")[2])
    assert f"from step {resumed}," in done.stderr
