"""The ccl backend in the image: every collective against a reference, training against gloo, every launcher."""

import json
from pathlib import Path

import pytest

from tests.containers import RunInImage
from tooling.basis.paths import ROOT
from tooling.checks import differential

CHECKS = ("--volume", f"{ROOT / 'bindings' / 'tests'}:/checks:ro", "--shm-size", "1g")

REPORT = """
import json, os, torch, torch.distributed as dist
number = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(number)
mapped = {line.split(maxsplit=5)[-1].strip() for line in open("/proc/self/maps")}
print(json.dumps({"backend": dist.get_backend(), "rank": dist.get_rank(), "sum": number.item(),
                  "own_segment": any(name.startswith("/memfd:ccl-shared-") for name in mapped),
                  "in_shared_memory": sum(name.startswith("/dev/shm/") and "KMP" not in name for name in mapped),
                  "variables": {name: value for name, value in os.environ.items() if name[:3] in ("CCL", "FI_")}})
      + "\\n", end="", flush=True)
"""

KILL_RANK_1 = """
import os, signal, sys, time, torch, torch.distributed as dist
dist.barrier()
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(1)
dist.all_reduce(torch.ones(1000))
"""


def mounted(script: Path) -> tuple[str, ...]:
    return ("--volume", f"{script.parent}:/scripts:ro", "--shm-size", "1g")


@pytest.mark.parametrize("ranks", [3, 4])
def test_every_collective_matches_the_reference(run_in_image: RunInImage, ranks: int) -> None:
    command = ("launch", f"--nproc-per-node={ranks}", "--", "run", "--backend", "ccl", "/checks/collectives.py")
    done = run_in_image(*command, docker_args=CHECKS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"results of {ranks} ranks are right" in done.stdout


@pytest.mark.skipif("avx512bw" not in Path("/proc/cpuinfo").read_text(), reason="needs AVX-512")
def test_ranks_with_different_processors_agree_and_round(run_in_image: RunInImage) -> None:
    # With avx512f, oneCCL sums as on a processor without AVX512-BF16: it truncates.
    each = "RANK=$rank LOCAL_RANK=$rank entrypoint run --backend ccl /checks/collectives.py"
    start = f"(rank=0; {each}) & rank=1; CCL_BF16=avx512f {each} && wait $!"
    place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    network = {"FI_PROVIDER": "tcp", "CCL_ATL_SHM": "0"}
    done = run_in_image("sh", "-c", start, env={**place, **network}, docker_args=CHECKS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "results of 2 ranks are right" in done.stdout


def test_ddp_its_hooks_and_fsdp_train_like_gloo(run_in_image: RunInImage) -> None:
    command = ("launch", "--nproc-per-node=2", "--", "run", "--backend", "ccl", "/checks/training.py")
    done = run_in_image(*command, docker_args=CHECKS)
    assert done.returncode == 0, done.stdout + done.stderr
    hooks = ("power_sgd_1", "power_sgd_2", "batched_power_sgd", "quantized", "power_sgd in several buckets")
    for name in ("ddp", "ddp_bf16", "ddp_hook", "fsdp", *hooks):
        assert f"\n{name}: " in "\n" + done.stdout


@pytest.mark.parametrize(
    ("launcher", "ranks"),
    [
        ((), 1),
        (("launch", "--nproc-per-node=2", "--"), 2),
        (("mpirun", "-n", "2", "entrypoint"), 2),
    ],
    ids=["alone", "launch", "mpirun"],
)
def test_ranks_of_every_launcher_connect_and_own_standard_output(
    run_in_image: RunInImage, script: Path, launcher: tuple[str, ...], ranks: int
) -> None:
    script.write_text(REPORT)
    done = run_in_image(*launcher, "run", "--backend", "ccl", "/scripts/script.py", docker_args=mounted(script))
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(report["rank"] for report in reports) == list(range(ranks))
    for report in reports:
        assert (report["backend"], report["sum"]) == ("ccl", sum(range(1, ranks + 1)))
        assert report["variables"]["FI_PROVIDER"] == ("tcp,shm" if ranks > 1 else "tcp")
        assert report["own_segment"] == (ranks > 1)
        assert report["in_shared_memory"] == (ranks if ranks > 1 else 0)  # its own file, and one of each peer


def test_a_killed_rank_ends_the_job_and_leaves_nothing_in_shared_memory(
    run_in_image: RunInImage, script: Path
) -> None:
    script.write_text(KILL_RANK_1)
    job = "entrypoint launch --nproc-per-node=2 -- run --backend ccl --timeout 60 /scripts/script.py"
    done = run_in_image("sh", "-c", f"{job}; echo code $?; ls -A /dev/shm", docker_args=mounted(script))
    assert "code 137" in done.stdout, done.stdout + done.stderr
    assert "rank 1 (local 1, node 0) was killed by SIGKILL" in done.stderr
    left = [name for name in done.stdout.splitlines() if name != "code 137"]
    assert [name for name in left if not name.startswith("__KMP_REGISTERED_LIB")] == []


@pytest.mark.parametrize("over", ["shared-memory", "tcp"])
def test_random_calls_give_the_results_of_gloo_and_different_ones_fail_on_every_rank(
    run_in_image: RunInImage, over: str
) -> None:
    """As `./inv dev differential` does, in fewer cases: one of each kind has different arguments."""
    env = differential.TCP if over == "tcp" else {}
    command = ("launch", "--nproc-per-node=2", "--", "run", "--backend", "ccl", "/checks/differential.py")
    done = run_in_image(*command, "--cases=160", "--seed=1", env=env, docker_args=CHECKS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "152 results equal gloo's, 8 mismatched calls failed on every rank" in done.stdout


def test_an_error_of_the_backend_is_not_reported_as_an_unreachable_master(
    run_in_image: RunInImage,
) -> None:
    error = (
        "ccl: the ranks could not connect, group 0, rank 0 of 2: rank 1 has ended, or its host cannot be reached"
    )
    code = f"""
from cpu_train_stack.group import create
from cpu_train_stack.placement import detect
place = detect.detect({{}})
print(create.explain(RuntimeError({error!r}), place, 30.0))
"""
    done = run_in_image("python", "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(error)
    assert "MASTER_ADDR" not in done.stdout


def test_too_little_shared_memory_is_a_warning(run_in_image: RunInImage, script: Path) -> None:
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "number = torch.ones(1000)\ndist.all_reduce(number)\n"
        'print(f"{dist.get_backend()} {number.sum().item():g}\\n", end="", flush=True)\n'
    )
    command = ("launch", "--nproc-per-node=2", "--", "run", "/scripts/script.py")
    done = run_in_image(*command, docker_args=("--volume", f"{script.parent}:/scripts:ro", "--shm-size", "32m"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["ccl", "2000", "ccl", "2000"]
    assert done.stderr.count("MiB for 2 ranks on a host with") == 1
