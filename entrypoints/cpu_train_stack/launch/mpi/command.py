"""`mpi-launch --hosts FILE --ranks-per-node R -- COMMAND...`: ranks on several nodes, over ssh.

    mpi-launch --hosts node-0,node-1 --ranks-per-node 2 -- train ...

The nodes run `sshd`. Intel MPI's mpirun starts the ranks, and a watch on each node reports their state. When a
rank fails, mpi-launch prints one line with the rank and the cause, waits briefly for the other ranks' messages,
ends the other ranks and exits with the failed rank's code (128 + the signal's number if a signal killed it).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.interpreter import python_command
from cpu_train_stack.cli.options import (
    duration,
    option,
    parse_options,
    port_number,
    ranks_of_a_node,
    remaining_command,
)
from cpu_train_stack.launch.failures import report_signal
from cpu_train_stack.launch.mpi import hydra, ssh, ssh_user
from cpu_train_stack.launch.mpi.job import MpirunJob, Signals
from cpu_train_stack.launch.mpi.sessions import Nodes
from cpu_train_stack.launch.options import command_of
from cpu_train_stack.machine.last_checkpoint import grace_seconds
from cpu_train_stack.placement import hostfile

DEFAULT_START_SECONDS = 300.0


def _variable(text: str) -> str:
    if not text.isidentifier():
        raise argparse.ArgumentTypeError(
            f"found {text!r}, expected a variable's name: set the value in this environment"
        )
    return text


@dataclass(frozen=True)
class MpiLaunch:
    """A job. `variables`: names of this environment's variables that every rank gets, besides hydra.PASSED_ON."""

    hosts: tuple[str, ...] = option(
        "--hosts", "a hostfile, or node-0,node-1 (default: $I_MPI_HYDRA_HOST_FILE)", (),
        variables=("I_MPI_HYDRA_HOST_FILE",), type=hostfile.read, metavar="FILE|NAMES",
    )  # fmt: skip
    ranks_per_node: int = option(
        "--ranks-per-node", "ranks on each node (default: $I_MPI_PERHOST, or 1)", 1,
        variables=("I_MPI_PERHOST",), type=ranks_of_a_node, metavar="R",
    )  # fmt: skip
    variables: tuple[str, ...] = option(
        "--env", "pass this variable to every rank; may be repeated", (),
        action="append", type=_variable, metavar="NAME",
    )  # fmt: skip
    keys: Path = option(
        "--keys", "mounted folder with the user's key and known_hosts (default: %(default)s)",
        Path(contract.SSH_KEYS), type=Path, metavar="FOLDER",
    )  # fmt: skip
    port: int = option(
        "--port", "port of the nodes' sshd (default: %(default)s)", contract.SSH_PORT,
        type=port_number, metavar="PORT",
    )  # fmt: skip
    timeout_seconds: float = duration("--timeout", "time limit for all nodes to respond", DEFAULT_START_SECONDS)
    command: tuple[str, ...] = remaining_command()


def parse(argv: list[str], environ: Mapping[str, str]) -> MpiLaunch:
    """The options, with Intel MPI's variables (mpi-operator sets them) as defaults. Raises UsageError."""
    launch = parse_options(
        MpiLaunch, argv, "mpi-launch",
        "Start ranks on several nodes with Intel MPI's mpirun, over ssh. The nodes run this image's sshd.",
        "[options] -- COMMAND ARGS...", environ,
    )  # fmt: skip
    command = command_of("mpi-launch", launch.command)
    if not launch.hosts:
        raise UsageError("mpi-launch: --hosts is missing, expected a hostfile or names like node-0,node-1")
    return replace(launch, command=command)


def main(argv: list[str]) -> int:
    options = parse(argv, os.environ)
    if shutil.which(hydra.PROGRAM) is None:
        raise UsageError(f"mpi-launch: {hydra.PROGRAM} is not on PATH, expected a pin with Intel MPI (impi-rt)")
    grace = grace_seconds(os.environ)
    with Signals() as signals, ExitStack() as stack:
        private = ssh.copy_keys(options.keys)
        stack.callback(shutil.rmtree, private, ignore_errors=True)
        config = private / "config"
        config.write_text(ssh.client_config(private, options.port), encoding="utf-8")
        hosts = private / "hosts"
        hosts.write_text("".join(f"{host}\n" for host in options.hosts), encoding="utf-8")
        folder = f"{tempfile.gettempdir()}/ranks-{uuid.uuid4().hex}"  # unguessable; the watch fails if it exists
        environ = {**os.environ, **ssh_user.this_user(private, os.environ).variables}
        nodes = Nodes(options.hosts, config, folder, environ)
        stack.callback(nodes.close)
        nodes.open(options.timeout_seconds, grace, interrupted=lambda: signals.number != 0)
        if signals.number:
            return report_signal(signals.number)
        environ = {**hydra.environ(environ, options.hosts, config), contract.WATCH: folder}
        return MpirunJob(_start(options, hosts, environ), nodes, signals, grace).until_end()


def _start(options: MpiLaunch, hosts: Path, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    ranks = len(options.hosts) * options.ranks_per_node
    command = python_command("cpu_train_stack.launch.mpi.rank_parent", hydra.escape(options.command))
    argv = hydra.argv(hosts, ranks, options.ranks_per_node, [contract.WATCH, *options.variables], command)
    sys.stdout.flush()
    # Its own process group: ctrl-C at a terminal is handled here, once.
    return subprocess.Popen(argv, env=environ, stdin=subprocess.DEVNULL, start_new_session=True)
