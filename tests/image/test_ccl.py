"""The ccl backend in the image: every collective against a reference, training as with gloo, every launcher."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.containers import RunInImage
from tooling.paths import ROOT

CHECKS = ("--volume", f"{ROOT / 'bindings' / 'tests'}:/checks:ro", "--shm-size", "1g")

SAY = """
import json, os, torch, torch.distributed as dist
number = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(number)
mapped = {line.split(maxsplit=5)[-1].strip() for line in open("/proc/self/maps")}
print(json.dumps({"backend": dist.get_backend(), "rank": dist.get_rank(), "sum": number.item(),
                  "in_shared_memory": sum(name.startswith("/dev/shm/") and "KMP" not in name for name in mapped),
                  "variables": {name: value for name, value in os.environ.items() if name[:3] in ("CCL", "FI_")}})
      + "\\n", end="", flush=True)
"""

DIE = """
import os, signal, sys, time, torch, torch.distributed as dist
dist.barrier()
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(1)
dist.all_reduce(torch.ones(1000))
"""

ANOTHER_ORDER = """
import torch, torch.distributed as dist
from datetime import timedelta
dist.barrier()
group = dist.new_group(timeout=timedelta(seconds=5))
try:
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1000), group=group)
    else:
        dist.broadcast(torch.ones(5), 0, group=group)
        dist.barrier(group=group)
except RuntimeError as error:
    print(f"rank {dist.get_rank()}: {error}".replace("\\n", " ") + "\\n", end="", flush=True)
raise SystemExit(4)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    return tmp_path / "script.py"


def mounted(script: Path) -> tuple[str, ...]:
    return ("--volume", f"{script.parent}:/scripts:ro", "--shm-size", "1g")


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_collective_gives_what_it_should(run_in_image: RunInImage, ranks: int) -> None:
    command = ("launch", f"--nproc-per-node={ranks}", "--", "run", "--backend", "ccl", "/checks/collectives.py")
    done = run_in_image(*command, docker_args=CHECKS, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"results of {ranks} ranks are right" in done.stdout


def test_ddp_its_hooks_and_fsdp_train_as_with_gloo(run_in_image: RunInImage) -> None:
    command = ("launch", "--nproc-per-node=2", "--", "run", "--backend", "ccl", "/checks/training.py")
    done = run_in_image(*command, docker_args=CHECKS, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    hooks = ("power_sgd_1", "power_sgd_2", "batched_power_sgd", "quantized", "power_sgd in several buckets")
    for name in ("ddp", "ddp_bf16", "ddp_hook", "fsdp", *hooks):
        assert f"\n{name}: " in "\n" + done.stdout


@pytest.mark.parametrize(
    ("launcher", "ranks"),
    [
        ((), 1),
        (("launch", "--nproc-per-node=2", "--"), 2),
        (("torchrun", "--nproc-per-node=2", "--no-python", "entrypoint"), 2),
        (("mpirun", "-n", "2", "entrypoint"), 2),
    ],
    ids=["alone", "launch", "torchrun", "mpirun"],
)
def test_ranks_of_every_launcher_meet_and_standard_output_is_theirs(
    run_in_image: RunInImage, script: Path, launcher: tuple[str, ...], ranks: int
) -> None:
    script.write_text(SAY)
    done = run_in_image(*launcher, "run", "--backend", "ccl", "/scripts/script.py", docker_args=mounted(script))
    assert done.returncode == 0, done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(rank["rank"] for rank in said) == list(range(ranks))
    for rank in said:
        assert (rank["backend"], rank["sum"]) == ("ccl", sum(range(1, ranks + 1)))
        assert rank["variables"]["FI_PROVIDER"] == ("tcp,shm" if ranks > 1 else "tcp")
        assert rank["in_shared_memory"] == (ranks if ranks > 1 else 0)  # its own file and each peer's


def test_a_users_own_variable_stays(run_in_image: RunInImage, script: Path) -> None:
    script.write_text(SAY)
    command = ("launch", "--nproc-per-node=2", "--", "run", "--backend", "ccl", "/scripts/script.py")
    own = {"FI_PROVIDER": "tcp", "CCL_ATL_SHM": "0"}
    done = run_in_image(*command, env=own, docker_args=mounted(script))
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        assert own.items() <= json.loads(line)["variables"].items()


def test_a_killed_rank_ends_the_job_and_leaves_nothing_in_shared_memory(
    run_in_image: RunInImage, script: Path
) -> None:
    script.write_text(DIE)
    job = "entrypoint launch --nproc-per-node=2 -- run --backend ccl --timeout 60 /scripts/script.py"
    done = run_in_image("sh", "-c", f"{job}; echo code $?; ls -A /dev/shm", docker_args=mounted(script))
    assert "code 137" in done.stdout, done.stdout + done.stderr
    assert "rank 1 (local 1, node 0) was killed by SIGKILL" in done.stderr
    left = [name for name in done.stdout.splitlines() if name != "code 137"]
    assert [name for name in left if not name.startswith("__KMP_REGISTERED_LIB")] == []


def test_ranks_that_call_in_another_order_are_told_so(run_in_image: RunInImage, script: Path) -> None:
    script.write_text(ANOTHER_ORDER)
    command = ("launch", "--nproc-per-node=2", "--", "run", "--backend", "ccl", "/scripts/script.py")
    done = run_in_image(*command, docker_args=mounted(script))
    assert done.returncode == 4, done.stdout + done.stderr
    said = re.findall(r"^rank [01]: .*", done.stdout, re.MULTILINE)
    assert said, done.stdout + done.stderr  # each says it of both: the first to end may take the other with it
    for line in said:
        assert "rank 0 is at #1 all_reduce(float32, 1000)" in line
        assert re.search(r"rank 1 is at #(1 broadcast\(float32, 5\)|2 barrier)", line)


def test_what_the_backend_says_of_its_start_is_not_taken_for_an_unreachable_master(
    run_in_image: RunInImage,
) -> None:
    said = (
        "ccl: the ranks could not connect, group 0, rank 0 of 2: rank 1 has ended, or its host cannot be reached"
    )
    code = f"""
from entrypoints import distributed, environment
place = environment.detect({{}})
print(distributed.explain(RuntimeError({said!r}), place, 30.0))
"""
    done = run_in_image("python", "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(said)
    assert "MASTER_ADDR" not in done.stdout
