"""A cluster as a user sees it: exit codes, output, neighbours, and that nothing is left."""

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.cluster.conftest import Running, containers, inv, networks

ALL_REDUCE = """
import os, socket, torch, torch.distributed as dist
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
print(f"rank {dist.get_rank()} of {dist.get_world_size()} on {socket.gethostname()}: sum {total.item():.0f}, "
      f"cores {sorted(os.sched_getaffinity(0))}, uid {os.getuid()}", flush=True)
"""
EXIT_ON_RANK_1 = "import sys, torch.distributed as dist\nsys.exit(7 if dist.get_rank() == 1 else 0)\n"
SLEEP = "import time\nprint('asleep', flush=True)\ntime.sleep(600)\n"


def test_ranks_on_two_nodes_add_their_numbers_up(scripts: Path, image: str) -> None:
    (scripts / "job.py").write_text(ALL_REDUCE)
    result = inv(
        "up", "--name=four", "--nodes=2", "--ranks-per-node=2", f"--data={scripts}", "--", "run", "/data/job.py"
    )
    assert result.returncode == 0, result.stdout + result.stderr
    for rank in range(4):
        assert f"node-{rank // 2} | rank {rank} of 4 on node-{rank // 2}: sum 10" in result.stdout
    assert "uid 0" not in result.stdout


def test_plain_docker_compose_runs_the_printed_file(scripts: Path, image: str, tmp_path: Path) -> None:
    (scripts / "job.py").write_text(ALL_REDUCE)
    words = ("--name=printed", f"--data={scripts}", f"--output={tmp_path / 'output'}", "--print-compose")
    printed = inv("up", *words, "--", "run", "/data/job.py")
    assert printed.returncode == 0, printed.stderr
    file = tmp_path / "compose.yaml"
    file.write_text(printed.stdout)
    compose = ["docker", "compose", f"--file={file}"]
    try:
        done = subprocess.run([*compose, "up"], capture_output=True, text=True, check=False, timeout=300)
        assert done.stdout.count("exited with code 0") == 2, done.stdout + done.stderr
        assert "rank 1 of 2 on node-1: sum 3" in done.stdout
    finally:
        subprocess.run([*compose, "down"], capture_output=True, check=True, timeout=60)


def test_the_jobs_exit_code_is_the_commands(scripts: Path, image: str) -> None:
    (scripts / "job.py").write_text(EXIT_ON_RANK_1)
    result = inv("up", "--name=seven", "--nodes=2", f"--data={scripts}", "--", "run", "/data/job.py")
    assert result.returncode == 7, result.stdout + result.stderr
    assert "rank 1" in result.stdout
    assert "Traceback" not in result.stdout + result.stderr


def test_a_usage_error_in_the_nodes_is_one_line_and_exit_code_2(image: str) -> None:
    result = inv("up", "--name=usage", "--nodes=2", "--", "train", "--no_such_flag=1")
    assert result.returncode == 2, result.stdout + result.stderr
    assert result.stdout.count("no_such_flag") == 1, result.stdout
    assert "Traceback" not in result.stdout + result.stderr


def test_ctrl_c_removes_the_cluster_even_if_pressed_again(scripts: Path, start: Callable[..., Running]) -> None:
    (scripts / "job.py").write_text(SLEEP)
    running = start("interrupted", "--nodes=2", f"--data={scripts}", "--", "run", "/data/job.py")
    running.wait_for(lambda output: output.count("asleep") == 2)
    running.process.send_signal(signal.SIGINT)
    running.wait_for(lambda output: "removing cluster interrupted" in output)
    running.process.send_signal(signal.SIGINT)
    assert running.wait(60) == 130
    assert containers("interrupted") == []
    assert networks("interrupted") == []
    assert "Traceback" not in running.output()


def test_a_node_that_is_killed_ends_the_command(scripts: Path, start: Callable[..., Running]) -> None:
    (scripts / "job.py").write_text(SLEEP)
    running = start("killed", "--nodes=2", f"--data={scripts}", "--", "run", "/data/job.py")
    running.wait_for(lambda output: output.count("asleep") == 2)
    victim = next(name for name in containers("killed") if "node-1" in name)
    subprocess.run(["docker", "kill", victim], check=True, capture_output=True, timeout=60)
    assert running.wait(60) == 137
    assert "node-1 ended by signal 9" in running.output()


def test_two_clusters_run_beside_each_other_and_a_name_is_used_once(
    scripts: Path, start: Callable[..., Running]
) -> None:
    (scripts / "job.py").write_text(SLEEP)
    (scripts / "sum.py").write_text(ALL_REDUCE)
    first = start("first", "--nodes=2", f"--data={scripts}", "--", "run", "/data/job.py")
    first.wait_for(lambda output: output.count("asleep") == 2)
    second = inv("up", "--name=second", "--nodes=2", f"--data={scripts}", "--", "run", "/data/sum.py")
    assert second.returncode == 0, second.stdout + second.stderr
    assert "rank 1 of 2 on node-1: sum 3" in second.stdout
    again = inv("up", "--name=first", "--nodes=2", f"--data={scripts}", "--", "run", "/data/sum.py")
    assert again.returncode == 2
    assert again.stderr.count("\n") == 1
    assert "cluster first is running" in again.stderr
    assert inv("down", "--name=first").returncode == 0
    assert first.wait(60) != 0


def test_a_detached_cluster_is_logged_and_removed_by_down(scripts: Path, image: str) -> None:
    (scripts / "job.py").write_text(SLEEP)
    up = inv("up", "--name=detached", "--detach", "--nodes=1", f"--data={scripts}", "--", "run", "/data/job.py")
    assert up.returncode == 0, up.stderr
    try:
        for _ in range(60):
            logs = inv("logs", "--name=detached")
            if "asleep" in logs.stdout:
                break
        assert "asleep" in logs.stdout
        assert inv("down", "--name=nobody").returncode == 2
    finally:
        assert inv("down", "--name=detached").returncode == 0
    assert "asleep" in inv("logs", "--name=detached").stdout
