"""The plan of ranks of each launcher in the image: their placement, and separate cores."""

import json
import signal
import subprocess
import time

import pytest

from tests import containers
from tests.containers import RunInImage

# Each rank writes a file of its own: launchers may mix the lines of ranks that print at the same time.
PLAN = "entrypoint plan --json >/tmp/plan-"
SHOW = "printf '['; cat /tmp/plan-0; printf ','; cat /tmp/plan-1; printf ']'"


@pytest.mark.parametrize(
    ("start", "rank", "launcher"),
    [
        ("mpirun -n 2", "$PMI_RANK", "hydra"),
        ("torchrun --nproc-per-node 2 --no-python", "$RANK", "torchrun"),
        ("entrypoint launch --nproc-per-node 2 --", "$RANK", "torchrun"),
    ],
    ids=["Intel MPI", "torchrun", "launch"],
)
def test_each_rank_is_placed_and_has_separate_cores(
    run_in_image: RunInImage, start: str, rank: str, launcher: str
) -> None:
    done = run_in_image("sh", "-c", f"{start} sh -c '{PLAN}{rank}' && {SHOW}")
    assert done.returncode == 0, done
    plans = json.loads(done.stdout)
    places = [(plan["rank"], plan["world_size"], plan["local_rank"], plan["local_world_size"]) for plan in plans]
    assert places == [(0, 2, 0, 2), (1, 2, 1, 2)]
    assert {(plan["launcher"], plan["node_rank"]) for plan in plans} == {(launcher, 0)}
    first, second = (set(plan["cores"]) for plan in plans)
    if len(first | second) > 1:
        assert not first & second
    for plan in plans:
        assert 1 <= plan["omp_num_threads"] <= len(plan["cores"])


def test_a_variable_that_places_openmp_threads_leaves_all_cores_to_the_ranks(run_in_image: RunInImage) -> None:
    start = ("entrypoint", "launch", "--nproc-per-node", "1", "--", "plan", "--json")
    usual, placed = (run_in_image("env", *assigned, *start) for assigned in ((), ("OMP_PLACES=cores",)))
    assert json.loads(containers.works(placed))["cores"] == json.loads(containers.works(usual))["cores"]


def test_a_rank_without_a_placement_from_its_launcher_is_refused_in_one_line(run_in_image: RunInImage) -> None:
    done = run_in_image("env", "ALPS_APP_PE=1", "entrypoint", "train", "--output_dir", "/tmp/output")
    assert done.returncode == 2, done
    assert done.stderr.startswith("error: found ALPS_APP_PE=1, but aprun does not set the number of ranks")
    assert done.stderr.count("\n") == 1


def test_a_process_that_no_launcher_started_is_one_rank(run_in_image: RunInImage) -> None:
    (plan,) = json.loads(run_in_image("sh", "-c", "printf '['; entrypoint plan --json; printf ']'").stdout)
    assert (plan["launcher"], plan["world_size"], plan["local_world_size"]) == ("single", 1, 1)


def test_a_kill_for_memory_before_the_launch_is_not_its_cause(run_in_image: RunInImage) -> None:
    """The kernel counts such kills from the container's start on."""
    killed_before = "python -c 'len(bytes(1) * (4 << 30))'; echo $? >&2"
    start = "exec entrypoint launch --nproc-per-node 1 -- python -c 'import os; os.kill(os.getpid(), 9)'"
    limits = ["--memory=1g", "--memory-swap=1g"]
    done = run_in_image("sh", "-c", f"{killed_before}; {start}", docker_args=limits)
    assert (done.returncode, "137\n" in done.stderr) == (137, True), done.stderr
    assert done.stderr.splitlines()[-1] == "rank 0 (local 0, node 0) was killed by SIGKILL"


# A node that is paused or overloaded: the kernel takes the connection, and nothing answers.
SILENT_NODE = """
set -e
mkdir /tmp/keys
ssh-keygen -q -t ed25519 -N '' -f /tmp/keys/id_ed25519
python -c 'if True:
    import socket, time
    node = socket.create_server(("", 2222))
    print("listening", flush=True)
    time.sleep(600)' &
exec entrypoint mpi-launch --hosts=127.0.0.1 --keys=/tmp/keys -- train
"""


@pytest.mark.timeout(60)
def test_a_signal_ends_the_launch_while_a_node_does_not_answer(image: str) -> None:
    name = containers.unique_name()
    argv = ["docker", "run", "--rm", "--name", name, image, "sh", "-c", SILENT_NODE]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as launched:
        try:
            assert launched.stdout is not None
            assert launched.stdout.readline() == "listening\n"
            while (
                "ssh -F"
                not in subprocess.run(
                    ["docker", "top", name, "-o", "pid,args"],
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=60,
                ).stdout
            ):
                assert launched.poll() is None
                time.sleep(0.2)
            subprocess.run(["docker", "kill", "--signal=INT", name], check=True, timeout=60)
            assert launched.wait(10) == 128 + signal.SIGINT
        finally:
            subprocess.run(["docker", "rm", "-fv", name], capture_output=True, check=False, timeout=60)
