"""./inv manifest slurm: a batch script that bash accepts, and options that Slurm does not."""

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.placement import launchers
from tooling.hpc.slurm import SlurmJob

COMMAND = ("train", "--model_name_or_path", "/data/bert", "--output_dir", "/output/it's $(here)")
OPTIONS: dict[str, Any] = {"command": COMMAND, "image": "/shared/stack", "output": "/shared/output"}


def script(**changes: Any) -> str:
    return SlurmJob(**{**OPTIONS, **changes}).script()


def directives(text: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]


def srun(text: str) -> list[str]:
    """The words of the command that starts the ranks."""
    joined = text.replace("\\\n", " ")
    (line,) = [line for line in joined.splitlines() if line.startswith("srun ")]
    return shlex.split(line.removesuffix("&"))


@pytest.mark.parametrize(
    "changes",
    [{}, {"time": "1-12", "cpus": 60, "ranks_per_node": 2, "data": "/shared/my data", "env": ("A=$x",)}],
    ids=["few options", "many options"],
)
def test_bash_accepts_the_script(changes: dict[str, Any]) -> None:
    subprocess.run(["bash", "-n", "-c", script(**changes)], check=True, capture_output=True, timeout=30)


def test_the_shell_passes_the_arguments_to_srun_byte_for_byte(tmp_path: Path) -> None:
    words = ("train", "$$", "$HOME", "${rank}", "a b", "'\"", "new\nline", "*", "~", "", "{x}", "--", "\\", "`id`")
    (tmp_path / "srun").write_text("#!/bin/sh\nfor word; do printf '%s\\0' \"$word\"; done\n")
    (tmp_path / "srun").chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}
    argv = ["bash", "-c", script(command=words)]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=30, check=True)
    assert tuple(done.stdout.split("\0")[:-1])[-len(words) :] == words


def test_the_directives_follow_from_the_options() -> None:
    assert directives(script()) == [
        *("--job-name=train", "--nodes=2", "--ntasks-per-node=1", "--exclusive", "--mem=0"),
        *("--requeue", "--open-mode=append"),
    ]
    changes = {"cpus": 60, "ranks_per_node": 2, "memory": "128G", "time": "2:00:00", "partition": "spr"}
    assert directives(script(**changes, account="team", nodes=4)) == [
        *("--job-name=train", "--nodes=4", "--ntasks-per-node=2", "--cpus-per-task=30", "--mem=128G"),
        *("--partition=spr", "--account=team", "--time=2:00:00", "--signal=B:USR1@180"),
        *("--requeue", "--open-mode=append"),
    ]


def test_only_a_job_with_a_time_limit_waits_for_its_signal() -> None:
    assert "USR1" not in script()
    assert "trap at_limit USR1" in script(time="60")


def test_a_job_without_restarts_is_not_requeued_by_slurm_either() -> None:
    assert {"--requeue", "--no-requeue"} & set(directives(script(max_restarts=0))) == {"--no-requeue"}


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (
            "/shared/stack",
            "ch-run --set-env --bind=/shared/data:/data --bind=/shared/output:/output /shared/stack --",
        ),
        (
            "/shared/stack.sif",
            "apptainer exec --bind=/shared/data:/data:ro --bind=/shared/output:/output /shared/stack.sif",
        ),
    ],
    ids=["charliecloud", "Apptainer"],
)
def test_srun_starts_the_entrypoint_in_the_image(image: str, expected: str) -> None:
    words = srun(script(image=image, data="/shared/data", env=("NOTE=$(date)",)))
    assert words[-len(COMMAND) - 1 :] == ["/usr/local/bin/entrypoint", *COMMAND]
    assert expected in " ".join(words)
    assert f"CPU_TRAIN_STACK_IMAGE={image}" in words
    assert "NOTE=$(date)" in words
    host = words[: words.index("ch-run" if image == "/shared/stack" else "apptainer")]
    assert host[:3] == ["srun", "--kill-on-bad-exit=1", "--cpu-bind=none"]
    for name in ("LD_PRELOAD", "FI_PROVIDER", "FI_PROVIDER_PATH"):
        assert host[host.index(name) - 1] == "-u"


def test_enroot_passes_on_the_variables_that_place_a_rank() -> None:
    words = srun(script(image="/shared/stack.sqsh", data="/shared/data", env=("NOTE=$(date)",)))
    assert words[-len(COMMAND) - 1 :] == ["/shared/stack.sqsh", *COMMAND]  # enroot starts the entrypoint
    started = words[words.index("enroot") :]
    assert started[:3] == ["enroot", "start", "--mount=/shared/data:/data:none:bind,ro,x-create=dir"]
    needed = {*launchers.SLURM.marks, *launchers.SLURM.variables}
    assert {f"--env={name}" for name in needed} | {"--env=NOTE=$(date)", "--env=HOME=/tmp"} <= {*started}


def test_enroot_cannot_mount_a_folder_with_a_space_in_its_name() -> None:
    script(data="/shared/my data")
    with pytest.raises(UsageError, match=r"--data is '/shared/my data', expected .* without ':' or spaces"):
        script(image="/shared/stack.sqsh", data="/shared/my data")


def test_a_job_may_choose_where_its_ranks_meet() -> None:
    assert "MASTER_PORT=29600" in srun(script(env=("MASTER_PORT=29600",)))
    words = srun(script(image="/shared/stack.sqsh", env=("MASTER_PORT=29600",)))
    assert [word for word in words if "MASTER_PORT" in word] == ["--env=MASTER_PORT=29600"]


def test_a_job_keeps_its_name_while_its_command_is_the_same() -> None:
    first = SlurmJob(**OPTIONS).job
    assert first == SlurmJob(**{**OPTIONS, "nodes": 4}).job
    assert first != SlurmJob(**{**OPTIONS, "command": (*COMMAND, "--seed=2")}).job


def test_all_bad_options_are_in_one_line() -> None:
    bad: dict[str, Any] = {
        "command": ("srun", "train"),
        "name": "a b",
        "image": "stack",
        "nodes": 0,
        "ranks_per_node": 0,
        "cpus": -1,
        "max_restarts": -1,
        "memory": "128GB",
        "time": "soon",
        "partition": "a b",
        "account": "a;b",
        "data": "/a:b",
        "output": "",
        "env": ("A-B=1",),
    }
    with pytest.raises(UsageError) as caught:
        SlurmJob(**bad)
    line = str(caught.value)
    assert "\n" not in line
    for name in bad.keys() - {"command"}:
        assert f"--{name.replace('_', '-')}" in line
    assert "the command begins with srun" in line


def test_a_colon_which_srun_takes_for_another_program_is_refused() -> None:
    with pytest.raises(UsageError, match="the command has the argument ':'"):
        script(command=(*COMMAND, ":", "x"))
    script(command=(*COMMAND, "a:b", "::"))


@pytest.mark.parametrize("first", ["", "--bf16"])
def test_a_command_that_is_none_is_refused(first: str) -> None:
    with pytest.raises(UsageError, match=f"the command begins with '{first}', expected train, run, bench"):
        script(command=(first,))


@pytest.mark.parametrize("cpus", [1, 7])
def test_cpus_that_the_ranks_cannot_share_are_refused(cpus: int) -> None:
    with pytest.raises(UsageError, match=f"--cpus {cpus} for 2 ranks, expected a multiple of 2"):
        script(cpus=cpus, ranks_per_node=2)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (("RANK=3",), "--env RANK: the launcher sets this variable"),
        (("A=1", "A=2"), "--env: A is given twice, expected once"),
        (("PET_\nA=1",), r"--env: 'PET_\\nA' is not a variable name"),
        (("CPU_TRAIN_STACK_RANKS_PER_NODE=2",), "--env CPU_TRAIN_STACK_RANKS_PER_NODE: use --ranks-per-node"),
    ],
)
def test_a_variable_that_would_be_ignored_is_refused(env: tuple[str, ...], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        script(env=env)


@pytest.mark.parametrize("time", ["9", "9:59", "0:09:59"])
def test_a_job_that_would_be_requeued_before_it_trains_is_refused(time: str) -> None:
    with pytest.raises(UsageError, match=f"--time is {time}, expected 10 minutes or more"):
        script(time=time)


@pytest.mark.parametrize("time", ["0", "10", "10:00", "0:10:00", "0-1", "1-0:00"])
def test_no_limit_or_ten_minutes_or_more_are_accepted(time: str) -> None:
    assert f"--time={time}" in script(time=time)


def test_a_job_that_is_never_requeued_may_be_short() -> None:
    assert "--time=5" in script(time="5", max_restarts=0)
