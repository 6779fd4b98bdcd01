"""Ranks that detect a dead peer, without an agent that would end them."""

from pathlib import Path

import pytest

from tests.containers import RunInImage

# Far above the limit of the test: a rank has to detect the dead peer to exit in time.
TIMEOUT = "1500"

SCRIPT = """
import os, signal, subprocess, sys, time, torch, torch.distributed as dist
kind = sys.argv[1]
group = dist.new_group([0, 1, 3]) if kind == "part" else None
dist.barrier()
if dist.get_rank() == 1:
    if kind == "child":  # inherits the connections, like a DataLoader worker
        subprocess.Popen(["sleep", "300"], close_fds=False)
        if os.fork() == 0:
            time.sleep(300)
    os.kill(os.getpid(), signal.SIGKILL)
try:
    if kind == "message":
        dist.recv(torch.ones(1), 1 if dist.get_rank() == 0 else 0)
    elif dist.get_rank() != 2 or group is None:
        dist.all_reduce(torch.ones(100), group=group)
except RuntimeError as error:
    print(f"rank {dist.get_rank()}: {error}".splitlines()[0] + "\\n", end="", flush=True)
    os._exit(5)
"""


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path


def run_ranks(run_in_image: RunInImage, scripts: Path, kind: str, ranks: int) -> str:
    """The output of the ranks, and `end RANK CODE` for each rank."""
    job = f"entrypoint run --backend ccl --timeout {TIMEOUT} /scripts/script.py {kind}"
    each = f'(RANK=$rank LOCAL_RANK=$rank {job}; echo end $rank $?) & pids="$pids $!"'
    start = f"for rank in $(seq 0 $(({ranks} - 1))); do {each}; done; wait $pids; ls -A /dev/shm"
    size = {"WORLD_SIZE": f"{ranks}", "LOCAL_WORLD_SIZE": f"{ranks}", "OMP_NUM_THREADS": "1"}
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    mounts = ("--volume", f"{scripts}:/scripts:ro", "--shm-size", "1g")
    done = run_in_image("sh", "-c", start, env={**size, **master}, docker_args=mounts)
    return done.stdout + done.stderr


@pytest.mark.parametrize(("kind", "ranks"), [("all", 2), ("all", 3), ("message", 2), ("child", 2)])
def test_every_rank_reports_the_dead_rank(run_in_image: RunInImage, scripts: Path, kind: str, ranks: int) -> None:
    output = run_ranks(run_in_image, scripts, kind, ranks)
    assert "end 1 137" in output
    for rank in set(range(ranks)) - {1}:
        assert f"end {rank} 5" in output, output
        (line,) = [line for line in output.splitlines() if line.startswith(f"rank {rank}: ")]
        assert "cannot complete: rank 1 has ended, or its host cannot be reached any more" in line
        assert f"group 0, rank {rank} of {ranks}" in line
    assert ":1000:" not in output, "the file of the killed rank is left in /dev/shm"


def test_a_subgroup_names_the_rank_in_the_job(run_in_image: RunInImage, scripts: Path) -> None:
    output = run_ranks(run_in_image, scripts, "part", 4)
    (line,) = [line for line in output.splitlines() if line.startswith("rank 3: ")]
    assert "rank 1 has ended" in line
    assert "rank 2 of 3" in line


def test_too_little_shared_memory_is_a_warning(run_in_image: RunInImage, scripts: Path) -> None:
    (scripts / "script.py").write_text(
        "import torch, torch.distributed as dist\n"
        "number = torch.ones(1000)\ndist.all_reduce(number)\n"
        'print(f"{dist.get_backend()} {number.sum().item():g}\\n", end="", flush=True)\n'
    )
    command = ("launch", "--nproc-per-node=2", "--", "run", "/scripts/script.py")
    done = run_in_image(*command, docker_args=("--volume", f"{scripts}:/scripts:ro", "--shm-size", "32m"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["ccl", "2000", "ccl", "2000"]
    assert done.stderr.count("MiB for 2 ranks on a host with") == 1
