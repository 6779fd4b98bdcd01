"""Ranks in one container: what a script sees, what it leaves, and how a job of several ranks ends."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.containers import RunInImage

SEE = """
import json, os, sys, __main__
import torch, torch.distributed as dist
maps = open("/proc/self/maps").read()
def child(name):
    import subprocess
    return subprocess.run(["sh", "-c", f"echo $" + name], capture_output=True, text=True).stdout.strip()
had = dist.is_initialized()
dist.init_process_group("gloo")
total = torch.ones(3) * (dist.get_rank() + 1)
dist.all_reduce(total)
print(json.dumps({
    "argv": sys.argv, "name": __name__, "main": __main__.__dict__ is globals(), "path": sys.path[0], "had": had,
    "rank": dist.get_rank(), "world_size": dist.get_world_size(), "total": total.tolist(),
    "backend": dist.get_backend(), "cores": sorted(os.sched_getaffinity(0)), "threads": torch.get_num_threads(),
    "tcmalloc": "libtcmalloc" in maps, "iomp": "libiomp5" in maps, "child_preload": child("LD_PRELOAD"),
    "environment": {k: os.environ.get(k) for k in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")},
}) + "\\n", end="", flush=True)
dist.destroy_process_group()
"""

FAIL = """
import os, signal, sys, time
import torch, torch.distributed as dist
how, who = sys.argv[1], int(sys.argv[2])
for step in range(100000):
    dist.all_reduce(torch.ones(10))
    time.sleep(0.01)
    if step == 20:
        open(f"/tmp/running-{dist.get_rank()}", "w").close()
        if dist.get_rank() == who:
            if how == "kill": os.kill(os.getpid(), signal.SIGKILL)
            if how == "exit": sys.exit(3)
            if how == "os_exit": os._exit(4)
            if how == "raise": raise LookupError("broken on purpose")
            if how == "hang":
                import atexit, threading
                atexit.register(time.sleep, 1000)
                threading.Thread(target=time.sleep, args=(1000,)).start()
                raise LookupError("broken on purpose")
"""

AGREE = """
import sys
import torch.distributed as dist
from entrypoints.distributed import agree
agree(None)
print("agreed", flush=True)
messages = {"same": ["no data"] * 2, "one": [None, "no data"], "two": ["no data", "no model"]}[sys.argv[1]]
agree(messages[dist.get_rank()])
print("not reached", flush=True)
"""

SCRIPTS = {"see.py": SEE, "fail.py": FAIL, "agree.py": AGREE, "broken.py": "def deep():\n    1 / 0\ndeep()\n"}


class Run(Protocol):
    def __call__(
        self, *argv: str, env: dict[str, str] | None = None, docker_args: Sequence[str] = (), timeout: float = 120
    ) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scripts")
    folder.chmod(0o755)  # the container's user is another one
    for name, text in SCRIPTS.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def run(run_in_image: RunInImage, scripts: Path) -> Run:
    """run_in_image with SCRIPTS in /scripts."""

    def with_scripts(
        *argv: str, env: dict[str, str] | None = None, docker_args: Sequence[str] = (), timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        mount = ["--volume", f"{scripts}:/scripts:ro", *docker_args]
        return run_in_image(*argv, env=env, docker_args=mount, timeout=timeout)

    return with_scripts


def seen(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """What SEE printed on each rank, by rank."""
    assert done.returncode == 0, done
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return sorted(lines, key=lambda line: int(line["rank"]))


def usage_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2, done
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line


# One rank


def test_a_script_runs_as_main_with_its_own_arguments_and_folder(run: Run) -> None:
    (rank,) = seen(run("run", "/scripts/see.py", "--backend", "x", "-m"))
    assert rank["argv"] == ["/scripts/see.py", "--backend", "x", "-m"]
    assert rank["name"] == "__main__"
    assert rank["main"]
    assert rank["path"] == "/scripts"


def test_a_single_rank_has_a_group_of_one_without_any_network(run: Run) -> None:
    (rank,) = seen(run("run", "/scripts/see.py", docker_args=["--network", "none"]))
    assert rank["had"]
    assert (rank["world_size"], rank["backend"], rank["total"]) == (1, "ccl", [1.0, 1.0, 1.0])
    assert rank["environment"] == {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


def test_a_single_rank_needs_no_free_port(run: Run) -> None:
    code = """
import socket, subprocess, sys
taken = socket.create_server(("", 29500))
sys.exit(subprocess.call(["entrypoint", "run", "/scripts/see.py"]))
"""
    assert len(seen(run("python", "-c", code))) == 1


def test_the_training_process_has_its_preloads_and_its_children_do_not(run: Run) -> None:
    done = run("run", "--backend", "gloo", "/scripts/see.py")
    (rank,) = seen(done)
    assert rank["tcmalloc"]
    assert rank["iomp"]
    assert rank["child_preload"] == ""
    assert "warning" not in done.stderr


def test_a_users_own_preload_stays_for_the_scripts_children(run: Run) -> None:
    own = "/lib/x86_64-linux-gnu/libBrokenLocale.so.1"
    (rank,) = seen(run("run", "/scripts/see.py", env={"LD_PRELOAD": own}))
    assert rank["tcmalloc"]
    assert rank["child_preload"] == own


def test_other_commands_are_not_preloaded(run: Run) -> None:
    assert "libtcmalloc" not in run("cat", "/proc/self/maps").stdout


def test_a_missing_preload_is_a_warning_with_the_mend(run: Run) -> None:
    hidden = "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"
    done = run("sh", "-c", f"rm -f {hidden}* && entrypoint run /scripts/see.py", docker_args=["--user", "root"])
    (rank,) = seen(done)
    assert not rank["tcmalloc"]
    assert "libtcmalloc-minimal4" in done.stderr


def test_a_module_runs_as_main_with_the_current_folder_on_its_path(run: Run) -> None:
    (rank,) = seen(run("run", "-m", "see", "a", docker_args=["--workdir", "/scripts"]))
    assert rank["name"] == "__main__"
    assert rank["argv"] == ["/scripts/see.py", "a"]


def test_an_exception_is_the_scripts_own_and_starts_in_the_script(run: Run) -> None:
    done = run("run", "/scripts/broken.py")
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert 'File "/scripts/broken.py", line 3' in done.stderr
    assert "runpy" not in done.stderr
    assert "/opt/cpu-train-stack" not in done.stderr


def test_the_scripts_exit_code_is_its_own(run: Run) -> None:
    done = run("run", "--quiet", "/scripts/fail.py", "exit", "0")
    assert (done.returncode, done.stderr) == (3, "")


@pytest.mark.parametrize("name", ["json", "pathlib", "argparse", "random", "torch"])
def test_files_in_the_current_folder_do_not_hide_libraries(run: Run, name: str) -> None:
    hide = f"cd /tmp && echo 'raise SystemExit(9)' >{name}.py"
    (rank,) = seen(run("sh", "-c", f"{hide} && exec entrypoint run /scripts/see.py"))
    assert rank["world_size"] == 1


def test_a_backend_that_is_not_there_is_one_line_with_the_choices(run: Run) -> None:
    assert "'smoke' is not in this image, expected one of: ccl, gloo" in usage_line(
        run("run", "--backend", "smoke", "/scripts/see.py")
    )


def test_a_missing_script_is_one_line(run: Run) -> None:
    assert "'/scripts/none.py' is not a file" in usage_line(run("run", "/scripts/none.py"))


# Several ranks


def test_launched_ranks_reduce_over_each_other_on_cores_of_their_own(run: Run) -> None:
    first, second = seen(run("launch", "--nproc-per-node", "2", "--", "run", "/scripts/see.py"))
    assert first["total"] == second["total"] == [3.0, 3.0, 3.0]
    assert (first["rank"], second["rank"], first["world_size"]) == (0, 1, 2)
    if len({*first["cores"], *second["cores"]}) > 1:
        assert not set(first["cores"]) & set(second["cores"])
    assert first["threads"] == len(first["cores"])


def test_ranks_of_mpirun_are_the_same_ranks(run: Run) -> None:
    first, second = seen(run("mpirun", "-n", "2", "entrypoint", "run", "/scripts/see.py"))
    assert first["total"] == second["total"] == [3.0, 3.0, 3.0]
    assert second["environment"] == {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    if len({*first["cores"], *second["cores"]}) > 1:
        assert not set(first["cores"]) & set(second["cores"])


def test_ranks_of_plain_torchrun_are_the_same_ranks(run: Run) -> None:
    done = run("torchrun", "--nproc-per-node", "2", "--no-python", "entrypoint", "run", "/scripts/see.py")
    first, second = seen(done)
    assert first["total"] == second["total"] == [3.0, 3.0, 3.0]


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("kill", 137, "rank 1 (local 1, node 0) was killed by SIGKILL"),
        ("exit", 3, "rank 1 (local 1, node 0) exited with code 3"),
        ("os_exit", 4, "rank 1 (local 1, node 0) exited with code 4"),
        ("raise", 1, "rank 1 (local 1, node 0) exited with code 1"),
        ("hang", 1, "rank 1 (local 1, node 0) exited with code 1"),
    ],
)
def test_a_failing_rank_ends_the_job_with_its_own_code(run: Run, how: str, code: int, said: str) -> None:
    start = time.monotonic()
    done = run("launch", "--nproc-per-node", "2", "--", "run", "/scripts/fail.py", how, "1")
    assert time.monotonic() - start < 60
    assert done.returncode == code
    assert done.stderr.splitlines()[-1] == said
    assert "ChildFailedError" not in done.stderr
    assert "failed (exitcode" not in done.stderr  # torchrun's agent


@pytest.mark.parametrize(("name", "code"), [("TERM", 143), ("INT", 130)])
def test_a_signal_to_the_launcher_stops_every_rank(run: Run, name: str, code: int) -> None:
    shell = f"""
        python -m entrypoints launch --nproc-per-node 2 -- run /scripts/fail.py never 0 & launcher=$!
        for i in $(seq 600); do [ -e /tmp/running-0 ] && [ -e /tmp/running-1 ] && break; sleep 0.1; done
        kill -{name} $launcher; wait $launcher; echo "code $?"
        grep -lzx '/scripts/fail[.]py' /proc/[0-9]*/cmdline 2>/dev/null | wc -l
    """
    # An interactive shell: others start background commands deaf to SIGINT.
    done = run("bash", "-ic", shell)
    assert f"code {code}" in done.stdout, done
    assert done.stdout.splitlines()[-1] == "0"


def test_the_same_usage_error_on_every_rank_is_said_once(run: Run) -> None:
    assert "not a file" in usage_line(run("launch", "--nproc-per-node", "2", "--", "run", "/scripts/none.py"))


def test_a_usage_error_of_one_rank_is_said_by_rank_0_with_the_ranks_number(run: Run) -> None:
    shell = "[ $LOCAL_RANK = 1 ] && script=/none.py || script=/scripts/see.py; exec entrypoint run $script"
    line = usage_line(run("launch", "--nproc-per-node", "2", "--", "sh", "-c", shell))
    assert line.startswith("error: rank 1: run: '/none.py' is not a file")


@pytest.mark.parametrize(
    ("case", "lines"),
    [
        ("same", ["error: no data"]),
        ("one", ["error: rank 1: no data"]),
        ("two", ["error: rank 0: no data", "error: rank 1: no model"]),
    ],
)
def test_ranks_agree_on_an_error_and_end_together(run: Run, case: str, lines: list[str]) -> None:
    done = run("launch", "--nproc-per-node", "2", "--", "run", "--quiet", "/scripts/agree.py", case)
    assert done.returncode == 2
    assert done.stdout.count("agreed") == 2
    assert "not reached" not in done.stdout
    assert done.stderr.splitlines() == lines


# Where ranks cannot meet


def test_a_port_in_use_is_one_line(run: Run) -> None:
    code = """
import socket, subprocess, sys
taken = socket.create_server(("", 29777))
sys.exit(subprocess.call("entrypoint launch --master-port 29777 -- run /scripts/see.py".split()))
"""
    assert "port 29777 on this host is in use" in usage_line(run("python", "-c", code))


def plain(rank: int, local_size: int = 2, **more: str) -> dict[str, str]:
    local = {"LOCAL_RANK": str(rank % local_size), "LOCAL_WORLD_SIZE": str(local_size)}
    return {"RANK": str(rank), "WORLD_SIZE": "2", **local, **more}


def test_a_rank_whose_peer_never_comes_gives_up_in_one_line(run: Run) -> None:
    line = usage_line(run("run", "--timeout", "3", "/scripts/see.py", env=plain(0)))
    assert "only 1 of 2 ranks met at 127.0.0.1:29500 within 3 s" in line


def test_an_unreachable_rank_0_is_one_line(run: Run) -> None:
    line = usage_line(run("run", "--timeout", "3", "/scripts/see.py", env=plain(1)))
    assert "rank 0 cannot be reached at 127.0.0.1:29500 within 3 s" in line


def test_loopback_is_refused_for_several_nodes(run: Run) -> None:
    line = usage_line(run("run", "/scripts/see.py", env=plain(0, 1, MASTER_ADDR="127.0.1.1")))
    assert "loopback (lo), but the 2 ranks are on several nodes" in line


def test_the_masters_own_name_is_refused_where_etc_hosts_makes_it_loopback(run: Run) -> None:
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


def test_lines_of_ranks_that_print_at_once_stay_whole(run: Run) -> None:
    code = "for number in range(300): print('one line of one rank')"
    job = f'echo "{code}" >/tmp/lines.py && exec entrypoint launch --nproc-per-node 2 -- run /tmp/lines.py'
    done = run("sh", "-c", job)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["one line of one rank"] * 600
