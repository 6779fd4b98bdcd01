"""The faults: how each is injected into a running cluster, and the message that must name its cause."""

import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cpu_train_stack.cli.errors import UsageError
from tooling.cluster.compose import LAUNCHER, LAUNCHERS, PROJECT_PREFIX
from tooling.engine import docker

# The node with the fault. Rank 0, which hosts the rendezvous and writes checkpoints, is on the other node.
NODE = "node-1"
_RANK = "cpu_train_stack.rank.worker"
# Sends a signal to the processes whose command line contains a text, except PID 1 and this process.
_SIGNAL = """
import os, pathlib, sys
text, number = sys.argv[1].encode(), int(sys.argv[2])
found = [int(path.name) for path in pathlib.Path("/proc").iterdir() if path.name.isdigit()
         and int(path.name) not in (1, os.getpid()) and text in (path / "cmdline").read_bytes()]
if not found:
    raise SystemExit(f"no process with {text}")
for process in found:
    os.kill(process, number)
"""
# Allocates memory until the kernel kills a process of the container: the rank, because of its oom_score_adj.
_EXHAUST_MEMORY = """
import os, pathlib
rank = next(path for path in pathlib.Path("/proc").iterdir() if path.name.isdigit()
            and int(path.name) != os.getpid() and b"stack.rank.worker" in (path / "cmdline").read_bytes())
(rank / "oom_score_adj").write_text("1000")
taken = []
while (rank / "oom_score_adj").exists():
    taken.append(b"1" * (32 << 20))
"""


@dataclass(frozen=True)
class Running:
    """A cluster with a running job. `process`: its ./inv up, in a separate process group."""

    name: str
    launcher: str
    process: subprocess.Popen[bytes]

    def container(self, service: str) -> str:
        """Compose's name for the container of a service."""
        return f"{PROJECT_PREFIX}{self.name}-{service}-1"

    def signal_in(self, service: str, command: str, number: signal.Signals) -> None:
        """Send a signal to the processes of a service whose command line contains `command`."""
        self.run_in(service, _SIGNAL, command, str(int(number)))

    def run_in(self, service: str, script: str, *arguments: str) -> None:
        """Run a Python script in the container of a service. The fault may kill the script, too."""
        done = docker.call("exec", self.container(service), "python", "-c", script, *arguments, limit_seconds=60)
        if done.returncode not in (0, 128 + signal.SIGKILL):
            raise UsageError(f"the fault could not be injected in {service}: {done.stderr.strip()}")


@dataclass(frozen=True)
class Fault:
    """`causes`: for each launcher, a regular expression for the message with the rank or node and the cause.

    An interrupt has none. `output_megabytes`: the size of a file system for the output folder, or 0 for the
    machine's file system. `options`: of ./inv up.
    """

    name: str
    description: str
    inflict: Callable[[Running], object]
    causes: Mapping[str, str]
    output_megabytes: int = 0
    options: tuple[str, ...] = ()


def _same(text: str) -> Mapping[str, str]:
    return dict.fromkeys(LAUNCHERS, text)


def _kill_launcher(running: Running) -> None:
    if running.launcher == "mpirun":
        running.signal_in(LAUNCHER, "mpi-launch", signal.SIGKILL)
    else:
        running.signal_in(NODE, "--nnodes", signal.SIGKILL)


def _disconnect(running: Running) -> None:
    docker.output("network", "disconnect", f"{PROJECT_PREFIX}{running.name}_cluster", running.container(NODE))


FAULTS = {
    fault.name: fault
    for fault in (
        Fault(
            "rank-killed",
            "a rank is killed by SIGKILL",
            lambda running: running.signal_in(NODE, _RANK, signal.SIGKILL),
            _same(r"rank 1 .*node 1\) was killed by SIGKILL"),
        ),
        Fault(
            "rank-stopped",
            "a rank is stopped with SIGSTOP",
            lambda running: running.signal_in(NODE, _RANK, signal.SIGSTOP),
            _same(r"rank 1 .*node 1\) is stopped"),
        ),
        Fault(
            "node-killed",
            "a node's container is killed",
            lambda running: docker.output("kill", running.container(NODE)),
            _same("node-1 ended by signal 9"),
        ),
        Fault(
            "node-paused",
            "a node's container is paused",
            lambda running: docker.output("pause", running.container(NODE)),
            _same("node-1 is paused"),
        ),
        Fault("node-cut-off", "a node is cut off from the network", _disconnect, _same("node-1 is cut off")),
        Fault(
            "out-of-memory",
            "a rank outgrows its node's memory limit",
            lambda running: running.run_in(NODE, _EXHAUST_MEMORY),
            _same(r"node 1\).*out of memory"),
            options=("--memory=2g",),
        ),
        Fault(
            "disk-full",
            "the output folder is full while a checkpoint is written",
            lambda _running: None,  # the job itself causes the fault
            _same("rank 0 on node-0: --output_dir '/output' is full"),
            output_megabytes=400,
        ),
        Fault(
            "launcher-killed",
            "the launcher is killed by SIGKILL",
            _kill_launcher,
            {"torchrun": "node-1 ended by signal 9", "mpirun": "launcher ended by signal 9"},
        ),
        Fault(
            "interrupt",
            "the user presses ctrl-C",
            # SIGINT to the process group, as from a terminal.
            lambda running: os.killpg(running.process.pid, signal.SIGINT),
            _same(""),
        ),
    )
}
