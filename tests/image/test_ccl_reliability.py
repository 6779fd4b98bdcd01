"""The ccl backend under failures and in long runs: error messages, and no leaked resources."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests import containers
from tests.containers import RunInImage
from tooling.checks.conformance import CHECKS

RUN = ("launch", "--nproc-per-node=2", "--", "run", "--backend", "ccl")

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


def growth_without_leaks(output: str, memory: float, mappings: int) -> dict[str, int]:
    """The growth of each resource in the JSON document of cycles.py or recovery.py. Fails if one leaked."""
    document = json.loads(output.splitlines()[-1])
    early, late = document["early"], document["late"]
    grown = {name: late[name] - early[name] for name in early}
    for name in ("files", "threads", "shared"):
        assert grown[name] <= 0, document
    assert grown["mappings"] <= mappings, document
    assert grown["memory"] < memory, document
    return grown


def test_creating_and_leaving_groups_leaks_nothing(run_in_image: RunInImage) -> None:
    # The flight recorder of torch 2.15 keeps the last 2000 calls of all groups.
    env = {"TORCH_FR_BUFFER_SIZE": "0"}
    done = run_in_image(*RUN, "/scripts/cycles.py", "--cycles=100", env=env, docker_args=mounted(CHECKS))
    assert done.returncode == 0, done.stdout + done.stderr
    assert growth_without_leaks(done.stdout, memory=20e6, mappings=4)["allocated"] < 0.5e6, done.stdout


def test_aborting_groups_and_recreating_them_without_a_rank_leaks_nothing(run_in_image: RunInImage) -> None:
    command = ("python", "/scripts/recovery.py", "/tmp", "--rounds=25")
    done = run_in_image(*command, docker_args=mounted(CHECKS))
    assert done.returncode == 0, done.stdout + done.stderr
    # Half a megabyte and less than one mapping for each of the 15 rounds that count; malloc's arenas add up to 8.
    growth_without_leaks(done.stdout, memory=8e6, mappings=12)


def test_processes_that_exit_with_a_call_in_flight_do_not_crash(run_in_image: RunInImage) -> None:
    command = ("python", "/scripts/exits.py", "/tmp", "--rounds=10")
    done = run_in_image(*command, docker_args=mounted(CHECKS))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20 processes exited with 0" in done.stdout
    # A thread that waits does not return to Python, which could be shutting down.
    assert "the process is ending" not in done.stderr


CASES = (
    *("callback_holds_the_gil", "callback_takes_time", "callback_waits", "callbacks_attached_late"),
    *("callbacks_give_way_in_order", "callbacks_in_order", "future_after_wait", "lanes_of_two_groups"),
    *("limited_wait", "message_futures", "one_openmp_team"),
    *("constructed", "late_in_barriers", "same_store"),
    *("different_orders", "different_tensors", "ended_rank", "forked", "forked_children", "interface"),
    *("left_in_order", "many_messages_before_a_sum", "mismatch_at_the_start", "parked_receive"),
)
# In these, rank 1 is killed, and the others exit with 5 once they have the reason.
DEATHS = (
    *("dead_before_joining", "dead_while_sharing", "dead_while_connecting", "failed_creation"),
    *("dead_rank:3", "dead_sender", "dead_rank_with_children", "dead_rank_of_a_part:4"),
)
ERRORS = ("average_of_unsigned", "group_at_fault", "no_more_threads")
ONECCL_ERRORS = (*ERRORS, "error_in_a_wait", "error_in_the_background", "several_suspects")
TCP = {"CCL_ATL_SHM": "0", "FI_PROVIDER": "tcp"}
WORKERS = {**TCP, "CCL_WORKER_OFFLOAD": "1", "CCL_WORKER_AFFINITY": "0,1"}
RUNS = {
    "shm": ((*CASES, *DEATHS, *ERRORS, "not_shared"), {}),
    "tcp": (ONECCL_ERRORS, TCP),
    "workers": (ONECCL_ERRORS, WORKERS),
}


def run_cases(
    image: str, cases: tuple[str, ...], env: dict[str, str], *docker_args: str
) -> dict[str, dict[str, Any]]:
    """What edge_cases.py reports of each case."""
    command = ("run", "--quiet", "--backend", "gloo", "--no-adapt", "all", "/scripts/edge_cases.py", *cases)
    args = (*mounted(CHECKS), *docker_args)
    done = containers.run(image, *command, env={"OMP_NUM_THREADS": "1", **env}, docker_args=args, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(zip(cases, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.fixture(scope="module")
def edge_cases(image: str) -> dict[str, dict[str, dict[str, Any]]]:
    """One container for all cases of a transport."""
    return {name: run_cases(image, *of_run) for name, of_run in RUNS.items()}


@pytest.mark.parametrize(("run", "case"), [(run, case) for run, (cases, _) in RUNS.items() for case in cases])
def test_edge_case(edge_cases: dict[str, dict[str, dict[str, Any]]], run: str, case: str) -> None:
    found = edge_cases[run][case]
    ranks = int(case.partition(":")[2] or 2)
    expected = [5, -9, 5, 5][:ranks] if case in DEATHS else [0] * ranks
    assert found["codes"] == expected, found["output"]
    assert found["left"] == [], "files in /dev/shm"
    if case == "not_shared":
        assert found["output"].count("do not share memory") == 1, found["output"]
        assert "Permission denied" in found["output"]


def test_a_host_name_that_is_loopback_is_not_the_address_for_other_ranks(image: str, tmp_path: Path) -> None:
    # As on Debian.
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n127.0.1.1 debian\n")
    args = ("--hostname", "debian", "--volume", f"{hosts}:/etc/hosts:ro")
    found = run_cases(image, ("own_name_is_loopback",), {}, *args)["own_name_is_loopback"]
    assert found["codes"] == [0, 0], found["output"]


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
