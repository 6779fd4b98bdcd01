"""The ccl backend under failures and in long runs: error messages, and no leaked resources."""

import json
from pathlib import Path

import pytest

from tests.containers import RunInImage
from tooling.checks.conformance import CHECKS

RUN = ("launch", "--nproc-per-node=2", "--", "run", "--backend", "ccl")

FORK = """
import os, sys, time, torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
rank = dist.get_rank()
part = dist.new_group([0, 1])
def check():
    for group in (None, part):
        numbers = torch.full((100_000,), rank + 1.0)
        dist.all_reduce(numbers, group=group)
        assert numbers.sum().item() == 300_000
def child(end):
    pid = os.fork()
    if pid == 0:
        end()
    for _ in range(200):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return "hung"
def use():
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError as error:
        print(f"child: {error}".splitlines()[0] + "\\n", end="", flush=True)
        os._exit(6)
    os._exit(0)
def leave():
    dist.destroy_process_group()
    os._exit(7)
for epoch in range(2):
    for (batch,) in DataLoader(TensorDataset(torch.arange(64.0)), batch_size=16, num_workers=2):
        total = batch.sum()
        dist.all_reduce(total)
        assert total.item() == 2 * batch.sum().item()
codes = []
for end in (lambda: os._exit(3), lambda: sys.exit(4), use, leave):
    codes.append(child(end))
    check()
print(f"codes {codes}\\n", end="", flush=True)
"""

LATE = """
import sys, time, torch, torch.distributed as dist
from datetime import timedelta
dist.barrier()
group = dist.new_group(timeout=timedelta(seconds=5))
if dist.get_rank() == 0:
    try:
        dist.all_reduce(torch.ones(1000), group=group)
    except RuntimeError as error:
        print(f"rank 0: {error}".splitlines()[0], flush=True)
        raise SystemExit(4)
time.sleep(60)
"""

# Rank 1 dies when oneCCL exchanges its first address, or before it has joined.
CONNECT = """
import os, signal, sys, torch.distributed as dist
import oneccl_bindings_for_pytorch
sys.path.append("/checks")
from cases import Wrapped, error_of, new_group, wrap_stores

class Dying(Wrapped):
    def set(self, key, value):
        later = ("lifeline", "joined")
        earlier = {"before": (), "sharing": later, "connecting": (*later, "shared", "node")}
        if not any(word in key for word in earlier[sys.argv[1]]):
            os.kill(os.getpid(), signal.SIGKILL)
        super().set(key, value)

if dist.get_rank() == 1:
    wrap_stores(Dying)
if error := error_of(lambda: new_group(seconds=5)):
    print(f"rank {dist.get_rank()}: {error}".splitlines()[0] + "\\n", end="", flush=True)
    os._exit(5)
"""

STALE = """
import os, time
from pathlib import Path
shared, uid = Path("/dev/shm"), os.geteuid()
def file(name, age):
    (shared / name).touch()
    os.utime(shared / name, (time.time() - age,) * 2)
dead = 4_000_000  # greater than every process id
file(f"{dead}:{uid}:7", 3600)
file(f"{dead}:{uid}:8", 5)  # may belong to a starting process of another container
file(f"{os.getpid()}:{uid}:9", 3600)
file(f"{dead}:{uid + 1}:7", 3600)
file(f"{dead}:{uid}:7.txt", 3600)
before = set(os.listdir(shared))
os.environ["CCL_ATL_SHM"] = "1"
import oneccl_bindings_for_pytorch
print(sorted(before - set(os.listdir(shared))) == [f"{dead}:{uid}:7"])
oneccl_bindings_for_pytorch._shm.created([10], opened_by_all=False)
file(f"{os.getpid()}:{uid}:10", 0)
child = os.fork()
if child == 0:
    raise SystemExit
os.waitpid(child, 0)
print((shared / f"{os.getpid()}:{uid}:10").exists(), flush=True)
"""


def mounted(folder: Path) -> tuple[str, ...]:
    return ("--volume", f"{folder}:/scripts:ro", "--volume", f"{CHECKS}:/checks:ro", "--shm-size", "1g")


def growth_without_leaks(output: str) -> dict[str, int]:
    """The growth of each resource in the JSON document of cycles.py or recovery.py. Fails if one leaked."""
    document = json.loads(output.splitlines()[-1])
    early, late = document["early"], document["late"]
    grown = {name: late[name] - early[name] for name in early}
    for name in ("files", "threads", "shared"):
        assert grown[name] <= 0, document
    assert grown["mappings"] <= 4, document
    assert grown["memory"] < 20e6, document
    return grown


def test_creating_and_leaving_groups_leaks_nothing(run_in_image: RunInImage) -> None:
    # The flight recorder of torch 2.15 keeps the last 2000 calls of all groups.
    env = {"TORCH_FR_BUFFER_SIZE": "0"}
    done = run_in_image(*RUN, "/scripts/cycles.py", "--cycles=100", env=env, docker_args=mounted(CHECKS))
    assert done.returncode == 0, done.stdout + done.stderr
    assert growth_without_leaks(done.stdout)["allocated"] < 0.5e6, done.stdout


def test_aborting_groups_and_recreating_them_without_a_rank_leaks_nothing(run_in_image: RunInImage) -> None:
    command = ("python", "/scripts/recovery.py", "/tmp", "--rounds=50")
    done = run_in_image(*command, docker_args=mounted(CHECKS))
    assert done.returncode == 0, done.stdout + done.stderr
    growth_without_leaks(done.stdout)


def test_processes_that_exit_with_a_call_in_flight_do_not_crash(run_in_image: RunInImage) -> None:
    command = ("python", "/scripts/exits.py", "/tmp", "--rounds=20")
    done = run_in_image(*command, docker_args=mounted(CHECKS))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "40 processes exited with 0" in done.stdout
    # A thread that waits does not return to Python, which could be shutting down.
    assert "the process is ending" not in done.stderr


CALLBACK_CASES = (
    "callback_holds_the_gil",
    "callback_takes_time",
    "callback_waits",
    "callbacks_attached_late",
    "callbacks_give_way_in_order",
    "callbacks_in_order",
    "future_after_wait",
    "lanes_of_two_groups",
    "limited_wait",
    "message_futures",
    "one_openmp_team",
)
CREATION_CASES = ("constructed", "failed_creation", "late_in_barriers", "same_store")
GROUP_CASES = (
    "different_tensors",
    "ended_rank",
    "forked",
    "interface",
    "left_in_order",
    "many_messages_before_a_sum",
    "mismatch_at_the_start",
    "parked_receive",
)


@pytest.mark.parametrize(
    ("file", "case"),
    [
        *(pytest.param("callback_cases.py", case, id=case) for case in CALLBACK_CASES),
        *(pytest.param("creation_cases.py", case, id=case) for case in CREATION_CASES),
        *(pytest.param("group_cases.py", case, id=case) for case in GROUP_CASES),
    ],
)
def test_edge_case(run_in_image: RunInImage, file: str, case: str) -> None:
    # Without an agent, which would end the ranks when one of them is killed.
    each = f"RANK=$rank LOCAL_RANK=$rank entrypoint run --backend ccl /scripts/{file} {case}"
    start = f"for rank in 0 1; do ({each}; echo end $rank $?) & done; wait"
    place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    done = run_in_image("sh", "-c", start, env=place, docker_args=mounted(CHECKS))
    assert f"{case}: right" in done.stdout, done.stdout + done.stderr
    assert "end 0 0" in done.stdout, done.stdout + done.stderr
    assert f"end 1 {9 if case == 'failed_creation' else 0}" in done.stdout, done.stdout + done.stderr


# One container for all cases: each takes seconds.
ERROR_CASES = ("average_of_unsigned", "group_at_fault", "no_more_threads")
ONECCL_ERROR_CASES = ("error_in_a_wait", "error_in_the_background", "several_suspects")
# Without an agent, which would end the ranks when one of them fails.
EACH_CASE = """
for case in %s; do
    for rank in 0 1; do
        (RANK=$rank LOCAL_RANK=$rank entrypoint run --backend ccl /scripts/error_cases.py $case
         echo end $case $?) &
    done
    wait
done
"""
TWO_RANKS = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
TCP = {"CCL_ATL_SHM": "0", "FI_PROVIDER": "tcp"}


@pytest.mark.parametrize(
    ("transport", "cases"),
    [
        pytest.param({}, ERROR_CASES, id="shared-memory"),
        pytest.param(TCP, ERROR_CASES + ONECCL_ERROR_CASES, id="tcp"),
        pytest.param(
            {**TCP, "CCL_WORKER_OFFLOAD": "1", "CCL_WORKER_AFFINITY": "0,1"},
            ERROR_CASES + ONECCL_ERROR_CASES,
            id="workers",
        ),
    ],
)
def test_an_error_of_oneccl_fails_the_group_at_fault_on_every_rank(
    run_in_image: RunInImage, transport: dict[str, str], cases: tuple[str, ...]
) -> None:
    start = EACH_CASE % " ".join(cases)
    done = run_in_image("sh", "-c", start, env={**TWO_RANKS, **transport}, docker_args=mounted(CHECKS))
    for case in cases:
        assert f"{case}: right" in done.stdout, done.stdout + done.stderr
        assert done.stdout.count(f"end {case} 0") == 2, done.stdout + done.stderr


def test_ranks_that_cannot_share_memory_say_so_once(run_in_image: RunInImage) -> None:
    start = EACH_CASE % "not_shared"
    done = run_in_image("sh", "-c", start, env=TWO_RANKS, docker_args=mounted(CHECKS))
    assert done.stdout.count("end not_shared 0") == 2, done.stdout + done.stderr
    assert done.stderr.count("do not share memory") == 1, done.stderr
    assert "Permission denied" in done.stderr


def test_a_host_name_that_is_loopback_is_not_the_address_for_other_ranks(run_in_image: RunInImage) -> None:
    # As on Debian. Plain torchrun: `run` would set FI_TCP_IFACE.
    hosts = 'printf "127.0.0.1 localhost\\n127.0.1.1 $(hostname)\\n" > /etc/hosts'
    start = f"{hosts}; torchrun --nproc-per-node 2 /scripts/error_cases.py own_name_is_loopback"
    env = {"CPU_TRAIN_STACK_TORCHRUN": "plain", "CCL_ATL_TRANSPORT": "ofi"}
    done = run_in_image("sh", "-c", start, env=env, docker_args=(*mounted(CHECKS), "--user", "0:0"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "own_name_is_loopback: right" in done.stdout


def test_forked_children_neither_hang_nor_disturb_the_group_of_their_parent(
    run_in_image: RunInImage, script: Path
) -> None:
    script.write_text(FORK)
    done = run_in_image(*RUN, "/scripts/script.py", docker_args=mounted(script.parent))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("codes [3, 4, 6, 7]") == 2, done.stdout
    assert "forked" in next(line for line in done.stdout.splitlines() if line.startswith("child: "))


def test_a_timeout_names_operation_group_rank_and_seconds(run_in_image: RunInImage, script: Path) -> None:
    script.write_text(LATE)
    done = run_in_image(*RUN, "/scripts/script.py", docker_args=mounted(script.parent))
    assert done.returncode == 4, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("rank 0: ")]
    assert "all_reduce(float32, 1000, SUM) did not complete within its timeout of 5 s" in line
    assert "group 1, rank 0 of 2" in line


@pytest.mark.parametrize(
    ("moment", "reason"),
    [
        ("before", "rank 1 did not join within 5 s"),
        ("sharing", "rank 1 has ended"),
        ("connecting", "the ranks could not connect"),
    ],
)
def test_a_rank_that_dies_during_group_creation_is_reported(
    run_in_image: RunInImage, script: Path, moment: str, reason: str
) -> None:
    script.write_text(CONNECT)
    # Without an agent, which would end rank 0 when rank 1 is killed.
    each = "CCL_LOCAL_RANK=$rank RANK=$rank LOCAL_RANK=$rank entrypoint run --backend gloo /scripts/script.py"
    start = f"for rank in 0 1; do ({each} {moment}; echo end $rank $?) & done; wait; ls -A /dev/shm"
    place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    done = run_in_image("sh", "-c", start, env=place, docker_args=mounted(script.parent))
    assert "end 1 137" in done.stdout, done.stdout + done.stderr
    assert "end 0 5" in done.stdout, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("rank 0: ")]
    assert reason in line
    assert ":1000:" not in done.stdout


def test_only_own_and_stale_shared_memory_files_are_removed(run_in_image: RunInImage, script: Path) -> None:
    script.write_text(STALE)
    command = ("sh", "-c", "python /scripts/script.py; ls -A /dev/shm | grep -c :10$")
    done = run_in_image(*command, docker_args=mounted(script.parent))
    assert done.stdout == "True\nTrue\n0\n", done.stdout + done.stderr


def test_a_missing_shared_memory_provider_is_an_error(run_in_image: RunInImage, script: Path) -> None:
    script.write_text("")
    providers = "mkdir /tmp/providers && ln -s /opt/venv/lib/libtcp-fi.so /tmp/providers"
    job = f"{providers} && FI_PROVIDER_PATH=/tmp/providers entrypoint {' '.join(RUN)} /scripts/script.py"
    done = run_in_image("sh", "-c", job, docker_args=mounted(script.parent))
    assert done.returncode == 2, done.stdout + done.stderr
    assert "CCL_ATL_SHM is '1', but libfabric's libshm-fi.so cannot be loaded" in done.stderr
    assert "Traceback" not in done.stderr
