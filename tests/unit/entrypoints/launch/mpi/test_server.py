"""The server of a node after SIGTERM, with a program in place of sshd that leaves a session behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.unit.entrypoints import ROOT

pytestmark = pytest.mark.timeout(60)

# As OpenSSH does, the server ends with 0 after SIGTERM, and its session goes on.
SERVER = "trap 'exit 0' TERM; sleep {seconds} & echo session $!; touch ready; while :; do sleep 0.1; done"
SERVE = "import sys; from pathlib import Path; from cpu_train_stack.launch.mpi.server import serve; "
SERVE += "sys.exit(serve(['sh', '-c', sys.argv[1]], __import__('os').environ, Path('ends'), int(sys.argv[2])))"


def started(folder: Path, session_seconds: float, grace_seconds: int) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", SERVE, SERVER.format(seconds=session_seconds), str(grace_seconds)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    server = subprocess.Popen(argv, cwd=folder, env=environ, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 20
    while not ((folder / "ready").exists() and _handles(server.pid, signal.SIGALRM)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return server


def _handles(pid: int, number: int) -> bool:
    """Whether the process handles the signal, the last of those that `serve` sets."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught >> (number - 1) & 1)


def test_sigterm_is_noted_and_the_server_waits_for_its_sessions(tmp_path: Path) -> None:
    server = started(tmp_path, session_seconds=2, grace_seconds=30)
    began = time.monotonic()
    server.send_signal(signal.SIGTERM)
    assert server.wait(20) == 0
    assert (tmp_path / "ends").exists()
    assert 1 < time.monotonic() - began < 15


@pytest.mark.parametrize(
    ("grace_seconds", "signals"),
    [
        pytest.param(1, [signal.SIGTERM], id="its time is over"),
        pytest.param(0, [signal.SIGTERM], id="no time"),
        pytest.param(30, [signal.SIGINT], id="SIGINT"),
        pytest.param(30, [signal.SIGTERM, signal.SIGTERM], id="twice"),
    ],
)
def test_the_server_ends_before_its_sessions(
    tmp_path: Path, grace_seconds: int, signals: list[signal.Signals]
) -> None:
    server = started(tmp_path, session_seconds=40, grace_seconds=grace_seconds)
    assert server.stdout is not None
    session = int(server.stdout.readline().split()[1])
    for number in signals:
        server.send_signal(number)
        time.sleep(0.5)
    assert server.wait(20) >= 128
    os.kill(session, signal.SIGKILL)


# SIGTERM comes as soon as the server exists.
EARLY = """
import os, signal, subprocess
start = subprocess.Popen
def popen(*args, **options):
    process = start(*args, **options)
    print(process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    return process
subprocess.Popen = popen
"""


def test_a_signal_while_the_server_starts_ends_it_too(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", EARLY + SERVE, "exec sleep 40", "0"]
    done = subprocess.run(
        argv, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=20
    )
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    state = Path(f"/proc/{int(done.stdout)}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"
