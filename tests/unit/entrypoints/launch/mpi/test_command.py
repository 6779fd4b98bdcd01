"""`mpi-launch` without nodes: options, mpirun's command line and environment, and the cause of a failure."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.launch.failures import Failure, failed_rank, first_failure
from cpu_train_stack.launch.mpi import command, hydra
from cpu_train_stack.launch.mpi.job import KILLED_HEAD_START, LOST_HEAD_START
from cpu_train_stack.machine import processes
from tests.signals import as_at_a_terminal
from tests.unit.entrypoints import ROOT


def test_the_options_of_a_job() -> None:
    argv = ["--hosts=node-0,node-1", "--ranks-per-node=2", "--env=HF_TOKEN", "--", "train", "--bf16"]
    launch = command.parse(argv, {})
    assert launch.hosts == ("node-0", "node-1")
    assert (launch.ranks_per_node, launch.variables, launch.port) == (2, ("HF_TOKEN",), 2222)
    assert launch.command == ("train", "--bf16")


def test_the_defaults_are_a_kubernetes_mpijobs_variables(tmp_path: Path) -> None:
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("job-worker-0.job.default.svc:1\njob-worker-1.job.default.svc:1\n")
    environ = {"I_MPI_HYDRA_HOST_FILE": str(hostfile), "I_MPI_PERHOST": "3"}
    launch = command.parse(["--", "train"], environ)
    assert launch.hosts == ("job-worker-0.job.default.svc", "job-worker-1.job.default.svc")
    assert launch.ranks_per_node == 3


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--hosts=a"], "no command"),
        (["--", "train"], "--hosts is missing"),
        (["--hosts=a", "--env=A=1", "--", "train"], "'A=1', expected a variable's name"),
        (
            ["--hosts=a", "--ranks-per-node=0", "--", "train"],
            "found '0', expected a number of ranks from 1 to 1024",
        ),
        (["--hosts=a", "--port=22", "--", "train"], "found '22', expected a port from 1024 to 65535"),
        (["--hosts=a,b,a", "--", "train"], "a is listed twice"),
        (["--hosts=-oProxyCommand=x", "--", "train"], "expected NAME, NAME:SLOTS"),
        (["--hosts=node-0,:2,a:b", "--", "train"], r"name 2: found ':2', expected NAME, .*; name 3: slots is 'b'"),
        (["--hosts=node-0,fe80::1", "--", "train"], "found 'fe80::1', expected NAME, .* IPv4"),
        (["--hosts=/no/such/file", "--", "train"], "is not a file"),
        (["--hosts=,", "--", "train"], "found no host"),
        (["--hosts=me@node-0", "--", "train"], "found 'me@node-0', expected NAME, NAME:SLOTS"),
    ],
)
def test_an_invalid_job_is_rejected(argv: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        command.parse(argv, {})


def test_mpirun_passes_on_only_named_variables() -> None:
    argv = hydra.argv(Path("/hosts"), 8, 2, ["HF_TOKEN", "PATH"], ["python", "x.py"])
    assert argv[-2:] == ["python", "x.py"]
    assert argv[argv.index("-n") + 1] == "8"
    assert argv[argv.index("-ppn") + 1] == "2"
    names = argv[argv.index("-genvlist") + 1].split(",")
    assert sorted(names) == sorted({*hydra.PASSED_ON, "HF_TOKEN"})
    assert "-genvall" not in argv


def test_mpirun_gets_no_argument_that_it_takes_for_another_program() -> None:
    words = ["train", ":", "::", "a:b", ":a", "", ":::"]
    escaped = hydra.escape(words)
    assert ":" not in escaped
    assert hydra.unescape(escaped) == words


def test_the_ranks_meet_on_the_first_host_unless_the_user_sets_another() -> None:
    environ = hydra.environ({"A": "b"}, ["node-0", "node-1"], Path("/run/ssh/config"))
    assert (environ["MASTER_ADDR"], environ["MASTER_PORT"], environ["A"]) == ("node-0", "29500", "b")
    own = hydra.environ({"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "2"}, ["node-0"], Path("/run/ssh/config"))
    assert (own["MASTER_ADDR"], own["MASTER_PORT"]) == ("10.0.0.1", "2")


def test_all_listening_ports_are_in_one_range() -> None:
    low, high = map(int, hydra.PORT_RANGE.split(":"))
    assert (hydra.FIRST_PORT, hydra.LAST_PORT) == (29500, 29999)
    assert (low, high) == (hydra.FIRST_PORT + 1, hydra.LAST_PORT)
    assert hydra.environ({}, ["a"], Path("/c"))["I_MPI_PORT_RANGE"] == hydra.PORT_RANGE


LOST = Failure("lost", 1, head_start=LOST_HEAD_START)
KILLED = failed_rank(0, 0, 0, -9, at=9.0, head_start=KILLED_HEAD_START)
EARLY = failed_rank(1, 0, 0, 1, at=1.0)
LATE = failed_rank(2, 0, 0, 3, at=2.0)
TERMINATED = failed_rank(3, 0, 0, -15, at=0.5, head_start=KILLED_HEAD_START)


@pytest.mark.parametrize(
    ("failures", "cause"),
    [
        ([EARLY, KILLED], KILLED),
        ([KILLED, LOST], LOST),
        ([LATE, EARLY], EARLY),
        ([TERMINATED, LATE], LATE),
    ],
    ids=["a killed rank before its peers", "a lost node", "the earlier", "a terminated rank comes last"],
)
def test_the_cause_comes_before_its_consequences(failures: list[Failure], cause: Failure) -> None:
    assert first_failure(failures) is cause


# Of two nodes, one responds; the other node's server accepts the connection and sends nothing.
SSH = """#!/bin/sh
echo $$ >> "$HOME/sessions"
[ "$3" = node-0 ] && echo '{"state": "ready"}'
exec sleep 600
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_ends_the_launch_while_it_waits_for_nodes(tmp_path: Path, number: signal.Signals) -> None:
    programs, keys = tmp_path / "bin", tmp_path / "keys"
    for folder in (programs, keys):
        folder.mkdir()
    for name in ("id_ed25519", "known_hosts"):
        (keys / name).touch()
    for name, script in (("ssh", SSH), ("mpiexec.hydra", "#!/bin/sh\n")):
        (programs / name).write_text(script)
        (programs / name).chmod(0o755)
    argv = ["mpi-launch", "--hosts=node-0,node-1", f"--keys={keys}", "--", "train"]
    launched = subprocess.Popen(
        [sys.executable, "-m", "cpu_train_stack", *argv],
        cwd=ROOT,
        env={**os.environ, "HOME": str(tmp_path), "PATH": f"{programs}:{os.environ['PATH']}"},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=as_at_a_terminal,
    )
    sessions = tmp_path / "sessions"
    try:
        deadline = time.monotonic() + 30
        while not sessions.is_file() or len(sessions.read_text().split()) < 2:
            assert launched.poll() is None, launched.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        launched.send_signal(number)
        _, said = launched.communicate(timeout=20)
    finally:
        launched.kill()
        pids = [int(pid) for pid in sessions.read_text().split()]
        left = [pid for pid in pids if processes.state(pid) not in ("", "Z")]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert (launched.returncode, said.count("\n"), number.name in said) == (128 + number, 1, True), said
    assert not left, "a session outlives the launcher"
    assert not list(tmp_path.glob("keys-*")), "the copies of the keys are left"
