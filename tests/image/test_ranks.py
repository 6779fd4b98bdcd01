"""Several ranks in one container: their cores, the end of a job, and errors in one line."""

import time

import pytest

from tests.containers import RunInImage
from tests.image.rank_scripts import seen, usage_line


def test_launched_ranks_reduce_over_each_other_on_separate_cores_and_print_whole_lines(run: RunInImage) -> None:
    done = run("launch", "--nproc-per-node", "2", "--", "run", "/scripts/see.py", env={"ROWS": "300"})
    first, second = seen(done)
    assert [line for line in done.stdout.splitlines() if line[:1] != "{"] == ["one line of one rank"] * 600
    assert first["total"] == second["total"] == [3.0, 3.0, 3.0]
    assert (first["rank"], second["rank"], first["world_size"]) == (0, 1, 2)
    if len({*first["cores"], *second["cores"]}) > 1:
        assert not set(first["cores"]) & set(second["cores"])
    assert first["threads"] == len(first["cores"])


def test_a_script_that_mpirun_starts_itself_is_run(run: RunInImage) -> None:
    """Otherwise, each rank would train alone. The last two jobs keep their command: each prints twice."""
    job = """
    mpirun -n 2 python /scripts/see.py && cd /scripts && mpirun -n 2 python -m see || exit 1
    mpirun -n 2 python -W ignore /scripts/threads.py || exit 1
    echo 'print("plain")' > /tmp/plain.py
    mpirun -n 2 python /tmp/plain.py
    """
    done = run("sh", "-c", job)
    ranks = [line for line in seen(done) if "total" in line]
    assert [line["total"] for line in ranks] == [[3.0, 3.0, 3.0]] * 4
    assert len(seen(done)) == 6
    assert ranks[-1]["environment"] == {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    if len({*ranks[0]["cores"], *ranks[-1]["cores"]}) > 1:
        assert not set(ranks[0]["cores"]) & set(ranks[-1]["cores"])
    assert done.stdout.count("plain\n") == 2
    for text in ("becomes `run /scripts/see.py`", "becomes `run -m see`"):
        assert done.stderr.count(text) == 1
    for rank in (0, 1):
        assert f"rank {rank} of 2, but python -W ignore /scripts/threads.py trains alone" in done.stderr


def test_ranks_of_plain_torchrun_are_the_same_ranks(run: RunInImage) -> None:
    done = run("torchrun", "--nproc-per-node", "2", "--no-python", "entrypoint", "run", "/scripts/see.py")
    first, second = seen(done)
    assert first["total"] == second["total"] == [3.0, 3.0, 3.0]


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("kill", 137, "rank 1 (local 1, node 0) was killed by SIGKILL"),
        ("exit", 3, "rank 1 (local 1, node 0) exited with code 3"),
        ("hang", 1, "rank 1 (local 1, node 0) exited with code 1"),
    ],
)
def test_a_failing_rank_ends_the_job_with_its_exit_code(run: RunInImage, how: str, code: int, said: str) -> None:
    start = time.monotonic()
    done = run("launch", "--nproc-per-node", "2", "--", "run", "/scripts/fail.py", how, "1")
    assert time.monotonic() - start < 60
    assert done.returncode == code
    assert done.stderr.splitlines()[-1] == said
    assert "ChildFailedError" not in done.stderr
    assert "failed (exitcode" not in done.stderr  # torchrun's agent


@pytest.mark.parametrize(("name", "code"), [("TERM", 143), ("INT", 130)])
def test_a_signal_to_the_launcher_stops_every_rank(run: RunInImage, name: str, code: int) -> None:
    shell = f"""
        python -m cpu_train_stack launch --nproc-per-node 2 -- run /scripts/fail.py never 0 & launcher=$!
        for i in $(seq 600); do [ -e /tmp/running-0 ] && [ -e /tmp/running-1 ] && break; sleep 0.1; done
        kill -{name} $launcher; wait $launcher; echo "code $?"
        grep -lzx '/scripts/fail[.]py' /proc/[0-9]*/cmdline 2>/dev/null | wc -l
    """
    # An interactive shell: others start background commands deaf to SIGINT.
    done = run("bash", "-ic", shell)
    assert f"code {code}" in done.stdout, done
    assert done.stdout.splitlines()[-1] == "0"


def test_rank_0_prints_the_usage_error_of_another_rank_with_its_number(run: RunInImage) -> None:
    shell = "[ $LOCAL_RANK = 1 ] && script=/none.py || script=/scripts/see.py; exec entrypoint run $script"
    line = usage_line(run("launch", "--nproc-per-node", "2", "--", "sh", "-c", shell))
    assert line.startswith("error: rank 1: run: '/none.py' is not a file")


def test_ranks_agree_on_an_error_and_end_together(run: RunInImage) -> None:
    done = run("launch", "--nproc-per-node", "2", "--", "run", "--quiet", "/scripts/agree.py")
    assert done.returncode == 2
    assert done.stdout.splitlines() == ["ended with 2"] * 6
    of_all, of_one, of_two = (
        "error: no data",
        "error: rank 1: no data",
        ["error: rank 0: no data", "error: rank 1: no model"],
    )
    assert done.stderr.splitlines() == [of_all, of_one, *of_two]


def test_a_port_in_use_is_one_line(run: RunInImage) -> None:
    code = """
import socket, subprocess, sys
taken = socket.create_server(("", 29777))
sys.exit(subprocess.call("entrypoint launch --master-port 29777 -- run /scripts/see.py".split()))
"""
    assert "port 29777 on this host is in use" in usage_line(run("python", "-c", code), code=1)


def plain(rank: int, local_size: int = 2, **more: str) -> dict[str, str]:
    local = {"LOCAL_RANK": str(rank % local_size), "LOCAL_WORLD_SIZE": str(local_size)}
    return {"RANK": str(rank), "WORLD_SIZE": "2", **local, **more}


def test_a_rank_without_its_peer_gives_up_in_one_line(run: RunInImage) -> None:
    line = usage_line(run("run", "--timeout", "3", "/scripts/see.py", env=plain(0)), code=1)
    assert "only 1 of 2 ranks met at 127.0.0.1:29500 within 3 s" in line


MEETING = """
from concurrent.futures import ThreadPoolExecutor
import torch.distributed as dist
from cpu_train_stack.group import create
from cpu_train_stack.placement import detect

def join(store, rank, seconds):
    place = {"RANK": rank, "WORLD_SIZE": 4, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 4}
    place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29500}
    try:
        create._join(store, detect.detect({key: str(value) for key, value in place.items()}), seconds)
    except create.MeetingError as error:
        return str(error).split(":")[0]
    return "joined"

def meet(store, ranks, seconds):
    with ThreadPoolExecutor(4) as pool:
        print(*pool.map(lambda rank: join(store, rank, seconds), ranks), sep="; ")

meet(dist.HashStore(), (0, 2), 1)
used = dist.HashStore()
meet(used, range(4), 60)
meet(used, range(4), 60)
meet(used, (1,), 1)
"""


def test_ranks_that_do_not_join_are_named_and_ranks_join_a_used_store_again(run: RunInImage) -> None:
    done = run("python", "-c", MEETING)
    assert done.returncode == 0, done.stderr
    absent = "rank 1, 3 of 4 did not join within 1 s"
    joined = "joined; joined; joined; joined"
    assert done.stdout.splitlines() == [
        f"{absent}; {absent}",
        joined,
        joined,
        "rank 0 of 4 did not join within 1 s",
    ]


def test_an_unreachable_rank_0_is_one_line(run: RunInImage) -> None:
    line = usage_line(run("run", "--timeout", "3", "/scripts/see.py", env=plain(1)), code=1)
    assert "rank 0 cannot be reached at 127.0.0.1:29500 within 3 s" in line


def test_loopback_is_refused_for_several_nodes(run: RunInImage) -> None:
    line = usage_line(run("run", "/scripts/see.py", env=plain(0, 1, MASTER_ADDR="127.0.1.1")))
    assert "loopback (lo), but the ranks are on several nodes" in line


def test_the_masters_name_is_refused_where_etc_hosts_maps_it_to_loopback(run: RunInImage) -> None:
    # Debian's installer writes such a line.
    line = usage_line(
        run(
            "run",
            "/scripts/see.py",
            env=plain(0, 1, MASTER_ADDR="node-a"),
            docker_args=["--add-host", "node-a:127.0.1.1"],
        )
    )
    assert "MASTER_ADDR 'node-a' is 127.0.1.1" in line
