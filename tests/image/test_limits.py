"""Ranks under real limits: the kernel's view of the training process matches the plan."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cpu_train_stack.machine import topology
from cpu_train_stack.machine.cpus import parse_cpu_list
from cpu_train_stack.plan.planner import ranks_for
from cpu_train_stack.plan.threads import affinity
from tests import documents
from tests.containers import RunInImage

HERE = Path(__file__).parent
MOUNT = ("--volume", f"{HERE}:/tests:ro")
CPUS = sorted(os.sched_getaffinity(0))
LAST = str(CPUS[-1])
CORES = len(topology.read().cores)
several_cores = pytest.mark.skipif(CORES < 2, reason=f"needs two physical cores, this machine allows {CORES}")


def look(run: RunInImage, limits: Sequence[str], *command: str) -> dict[str, Any]:
    done = run("python", "/tests/limits.py", *command, docker_args=[*MOUNT, *limits])
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["code"] == 0, done.stderr
    return document


@pytest.mark.parametrize(
    ("limits", "cpus", "threads", "reason"),
    [
        (["--cpus", "1.5"], CPUS, 2, "the container's CPU quota is 1.5 CPUs"),
        (["--cpuset-cpus", LAST], CPUS[-1:], 1, "may use all of its 1 core"),
        (["--cpus", "1.5", "--cpuset-cpus", LAST], CPUS[-1:], 1, "may use all of its 1 core"),
    ],
    ids=["quota", "cpuset", "both"],
)
@several_cores
def test_a_training_process_keeps_to_the_containers_limits(
    run_in_image: RunInImage, limits: list[str], cpus: list[int], threads: int, reason: str
) -> None:
    found = look(run_in_image, limits, "run", "/tests/small_job.py")
    assert documents.missing("plan", found["plan"]) == []
    assert found["plan"]["cores"] == cpus
    assert found["plan"]["omp_num_threads"] == threads
    assert reason in " ".join(found["plan"]["reasons"])
    assert sorted(parse_cpu_list(found["mask"])) == cpus
    assert found["tcmalloc"]
    assert found["iomp"]
    assert json.loads(found["printed"])["threads"] == threads


def test_the_trainer_runs_bound_and_preloaded_on_a_read_only_file_system(
    run_in_image: RunInImage, tiny_model: Path
) -> None:
    rows = "\\n".join(f"word {number},{number % 2}" for number in range(8))
    shell = f"""
        printf 'text,label\\n{rows}\\n' >/tmp/rows.csv &&
        exec python /tests/limits.py train --model_name_or_path /tiny --train_file /tmp/rows.csv \\
            --output_dir /tmp/output --max_steps 2 --save_strategy no --bf16 true
    """
    limits = ["--read-only", "--tmpfs", "/tmp:mode=1777", "--cpuset-cpus", LAST, "--env", "HOME=/tmp"]
    done = run_in_image("sh", "-c", shell, docker_args=[*MOUNT, *limits, "--volume", f"{tiny_model}:/tiny:ro"])
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["code"] == 0, done.stderr
    assert found["mask"] == LAST
    assert found["plan"]["cores"] == [CPUS[-1]]
    assert found["tcmalloc"]
    assert found["iomp"]


def test_auto_starts_a_rank_a_numa_node(run_in_image: RunInImage) -> None:
    done = run_in_image(
        "launch", "--nproc-per-node", "auto", "--", "run", "/tests/small_job.py", docker_args=MOUNT
    )
    assert done.returncode == 0, done.stderr
    ranks = [json.loads(line) for line in done.stdout.splitlines()]
    assert [rank["world_size"] for rank in ranks] == [ranks_for(topology.read())] * len(ranks)
    assert len(ranks) == ranks[0]["world_size"]
    assert sorted(cpu for rank in ranks for cpu in rank["loader"]) == CPUS


@several_cores
def test_data_is_loaded_on_the_cpus_that_compute_threads_keep_off(run_in_image: RunInImage) -> None:
    # As the plan sets it on cores with two hardware threads, which the machine of the tests may not have.
    placed = {"KMP_AFFINITY": affinity(CPUS[-1:]), "OMP_NUM_THREADS": "2"}
    done = run_in_image("run", "/tests/small_job.py", env=placed, docker_args=MOUNT)
    found = json.loads(done.stdout)
    assert found["main"] == [CPUS[-1]]
    assert found["openmp"] == [LAST]
    assert found["loader"] == CPUS
    assert "OMP:" not in done.stderr


@pytest.mark.parametrize(
    ("docker_args", "policy"), [([], "refused"), (["--cap-add", "SYS_NICE"], "default")], ids=["without", "with"]
)
def test_the_memory_policy_needs_a_capability(
    run_in_image: RunInImage, docker_args: list[str], policy: str
) -> None:
    code = "from cpu_train_stack.machine import numa; print(numa.current())"
    assert run_in_image("python", "-c", code, docker_args=docker_args).stdout.strip() == policy
