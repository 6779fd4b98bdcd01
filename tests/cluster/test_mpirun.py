"""A cluster of mpirun's over ssh: ranks, what reaches them, who may log in, and a start that is bounded."""

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cpu_train_stack.launch.mpi import hydra
from tests.cluster.conftest import containers, inv, networks
from tests.containers import unique_name
from tooling.cluster import compose, leftovers, run, users

NAME = "mpirun"
ALL_REDUCE = """
import json, os, pathlib, socket, torch, torch.distributed as dist
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
sockets = [line.split() for name in ("tcp", "tcp6") for line in pathlib.Path("/proc/net", name).open()]
listening = [row[1].split(":") for row in sockets if row[3] == "0A"]
# 127.0.0.11 is the engine's name server, in every container of a network.
ports = sorted({int(port, 16) for address, port in listening if address != "0B00007F"})
row = {"rank": dist.get_rank(), "sum": total.item(), "node": socket.gethostname(), "ports": ports,
       "cores": sorted(os.sched_getaffinity(0)), "threads": torch.get_num_threads(), "uid": os.getuid(),
       "wanted": os.environ.get("WANTED"), "secret": "SECRET" in os.environ,
       "ways_out": [line for line in pathlib.Path("/proc/net/route").open() if line.split()[1] == "00000000"]}
dist.barrier()
print("ROW " + json.dumps(row), flush=True)
"""
# Python, so that nothing depends on what tools the image has.
PROCESS_FACTS = """
import json, pathlib, re
status = dict(re.findall(r"^(\\w+):\\s*(.*)$", pathlib.Path("/proc/1/status").read_text(), re.MULTILINE))
print(json.dumps({name: status[name] for name in ("Uid", "CapEff", "CapBnd", "NoNewPrivs")}))
"""


@pytest.fixture(scope="module")
def launcher(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The launcher's container of a cluster whose ranks sleep, so that the tests can use it."""
    data = tmp_path_factory.mktemp("data")
    data.chmod(0o755)
    (data / "sum.py").write_text(ALL_REDUCE)
    options = ("--launcher=mpirun", "--nodes=2", f"--data={data}", "--detach")
    up = inv("up", f"--name={NAME}", *options, "--", "sleep", "600")
    assert up.returncode == 0, up.stderr
    launcher = f"{compose.PROJECT_PREFIX}{NAME}-launcher-1"
    try:
        started = "until ls -d /tmp/ranks-*; do sleep 0.1; done"
        assert run_in(launcher.replace("launcher", "node-1"), "sh", "-c", started).returncode == 0
        yield launcher
    finally:
        down = inv("down", f"--name={NAME}")
    assert down.returncode == 0, down.stderr
    assert containers(NAME) == networks(NAME) == leftovers.of_cluster(NAME) == []


@pytest.fixture(autouse=True)
def nothing_left() -> None:
    """The cluster of this module is shared by its tests: the fixture `launcher` checks what it leaves behind."""


def docker(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False, timeout=120)


def run_in(container: str, *argv: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    variables = [f"--env={name}={value}" for name, value in (env or {}).items()]
    command = ["docker", "exec", *variables, container, *argv]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def rows(output: str) -> list[dict[str, object]]:
    found = [json.loads(line.split("ROW ", 1)[1]) for line in output.splitlines() if "ROW {" in line]
    return sorted(found, key=lambda row: row["rank"])


def test_only_what_is_named_of_the_launchers_environment_reaches_a_rank(launcher: str) -> None:
    done = run_in(
        *(launcher, "entrypoint", "mpi-launch", "--hosts=node-0,node-1", "--ranks-per-node=2", "--env=WANTED"),
        *("--timeout=30", "--", "run", "--backend=ccl", "/data/sum.py"),
        env={"WANTED": "yes", "SECRET": "hunter2"},
    )
    assert done.returncode == 0, done
    found = rows(done.stdout)
    assert [row["rank"] for row in found] == [0, 1, 2, 3]
    assert [row["node"] for row in found] == ["node-0", "node-0", "node-1", "node-1"]
    assert {row["sum"] for row in found} == {10.0}
    assert {row["wanted"] for row in found} == {"yes"}
    assert not any(row["secret"] for row in found)
    assert "hunter2" not in done.stdout + done.stderr
    expected = users.container_user()[0]
    assert {row["uid"] for row in found} == {expected}
    for row in found:
        for port in row["ports"]:  # type: ignore[attr-defined]  # a list of numbers
            assert port == 2222 or hydra.FIRST_PORT <= port <= hydra.LAST_PORT, found


def ssh(launcher: str, *options: str, user: str = "") -> subprocess.CompletedProcess[str]:
    """ssh as the launcher calls it, with more options."""
    script = 'exec ssh -F /run/ssh/keys-*/config "$@" true'
    host = ("-l", user, "node-0") if user else ("node-0",)
    return run_in(launcher, "sh", "-c", script, "sh", *options, *host)


def test_the_launcher_logs_in(launcher: str) -> None:
    assert ssh(launcher).returncode == 0


@pytest.mark.parametrize(
    ("options", "user", "message"),
    [
        (["-o", "PreferredAuthentications=password,keyboard-interactive"], "", r"Permission denied (publickey)"),
        ([], "root", "Permission denied"),
        (["-W", "localhost:2222"], "", "stdio forwarding failed"),
        (["-o", "ExitOnForwardFailure=yes", "-R", "29990:localhost:2222"], "", "remote port forwarding failed"),
        (["-o", "UserKnownHostsFile=/dev/null"], "", "Host key verification failed"),
    ],
    ids=["a password", "root", "forwarding", "reverse forwarding", "an unknown host"],
)
def test_every_other_login_is_refused(launcher: str, options: list[str], user: str, message: str) -> None:
    refused = ssh(launcher, *options, user=user)
    assert refused.returncode == 255, refused
    assert message in refused.stderr


@pytest.mark.parametrize(
    "change", ["/IdentityFile/d", "s|IdentityFile .*|IdentityFile /tmp/other|"], ids=["no key", "another's key"]
)
def test_a_login_without_the_clusters_key_is_refused(launcher: str, change: str) -> None:
    make = "rm -f /tmp/other; ssh-keygen -q -t ed25519 -N '' -f /tmp/other"
    script = f"{make}; sed '{change}' /run/ssh/keys-*/config > /tmp/config"
    assert run_in(launcher, "sh", "-c", script).returncode == 0
    refused = run_in(launcher, "ssh", "-F", "/tmp/config", "node-0", "true")
    assert refused.returncode == 255
    assert "Permission denied (publickey)" in refused.stderr


def test_a_terminal_is_refused_although_commands_run(launcher: str) -> None:
    assert "PTY allocation request failed" in ssh(launcher, "-tt").stderr


def test_the_servers_have_no_privileges_and_their_keys_are_private(launcher: str) -> None:
    node = launcher.replace("launcher", "node-0")
    facts = json.loads(run_in(node, "python", "-c", PROCESS_FACTS).stdout)
    assert str(users.container_user()[0]) in facts["Uid"].split()
    assert "0" not in facts["Uid"].split()
    assert (int(facts["CapEff"], 16), int(facts["CapBnd"], 16), facts["NoNewPrivs"]) == (0, 0, "1")
    assert set(run_in(node, "ls", "/run/keys").stdout.split()) == {"authorized_keys", "ssh_host_ed25519_key"}
    assert run_in(node, "sh", "-c", "echo x > /run/keys/authorized_keys").returncode != 0
    keys = run.folder_of(NAME) / "ssh"
    private = [path for path in keys.rglob("*") if path.name in ("id_ed25519", "ssh_host_ed25519_key")]
    assert len(private) == 3
    assert {path.stat().st_mode & 0o077 for path in [keys, *private]} == {0}


@pytest.mark.parametrize(
    ("hosts", "missing"),
    [("node-0,node-7", "node-7 (ssh: Could not resolve"), ("node-0,launcher", "launcher (ssh: connect to host")],
    ids=["no such name", "nobody answers"],
)
def test_a_missing_node_is_named_within_the_deadline(launcher: str, hosts: str, missing: str) -> None:
    done = run_in(launcher, "entrypoint", "mpi-launch", f"--hosts={hosts}", "--timeout=3", "--", "true")
    assert done.returncode == 1, done
    assert done.stderr.count("\n") == 1
    assert missing in done.stderr
    assert "node-0 (" not in done.stderr
    assert "within 3 s" in done.stderr


def test_the_exit_code_of_the_rank_that_failed_is_the_commands(launcher: str) -> None:
    script = 'if [ "$PMI_RANK" = 1 ]; then exit 7; fi; sleep 60'
    done = run_in(launcher, "entrypoint", "mpi-launch", "--hosts=node-0,node-1", "--", "sh", "-c", script)
    assert done.returncode == 7, done
    assert "rank 1 (local 0, node 1) exited with code 7" in done.stderr


def test_no_process_and_no_file_of_a_job_stays_on_a_node(launcher: str) -> None:
    node = launcher.replace("launcher", "node-1")
    # What is there is the job that sleeps.
    assert len(run_in(node, "sh", "-c", "ls -d /tmp/ranks-*").stdout.split()) == 1
    processes = run_in(node, "ps", "-eo", "args").stdout
    assert processes.count("cpu_train_stack.launch.mpi.rank_parent") == 1, processes


@contextmanager
def foreign_container(image: str, network: str) -> Iterator[list[str]]:
    """A container that connects to the network as soon as it exists, and stays. Yields its name from then on."""
    name, found, ended = unique_name(), list[str](), threading.Event()

    def connect() -> None:
        while not found and not ended.wait(0.1):
            if docker("network", "connect", network, name).returncode == 0:
                found.append(name)

    started = docker("run", "--detach", "--rm", f"--name={name}", "--entrypoint=sleep", image, "600")
    thread = threading.Thread(target=connect)
    thread.start()
    try:
        assert started.returncode == 0, started.stderr
        yield found
    finally:
        ended.set()
        thread.join()
        docker("rm", "--force", name)


def test_eight_ranks_on_four_nodes_add_their_numbers_up_beside_a_foreign_container(
    image: str, scripts: Path
) -> None:
    """`./inv up` as a user calls it: its own cluster, beside the one of the other tests.

    A container of somebody else on the job's network, which has no way out, does not change the exit code.
    """
    (scripts / "sum.py").write_text(ALL_REDUCE)
    with foreign_container(image, f"{compose.PROJECT_PREFIX}mpi-up_cluster") as foreign:
        up = inv("up", "--name=mpi-up", "--launcher=mpirun", "--nodes=4", "--ranks-per-node=2", "--offline",
                 f"--data={scripts}", "--env=WANTED=yes", "--", "run", "/data/sum.py")  # fmt: skip
    assert up.returncode == 0, up.stdout + up.stderr
    assert foreign
    assert f"is used by {foreign[0]}" in up.stderr
    found = rows(up.stdout)
    assert [row["node"] for row in found] == [f"node-{rank // 2}" for rank in range(8)]
    assert {row["sum"] for row in found} == {36.0}
    assert {row["wanted"] for row in found} == {"yes"}
    assert [row["ways_out"] for row in found] == [[]] * 8
    down = inv("down", "--name=mpi-up")
    assert down.returncode == 0, down.stderr
    assert leftovers.of_cluster("mpi-up") == []
