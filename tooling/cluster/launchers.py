"""The command lines of the image's launchers, for local clusters, bare-metal hosts and Kubernetes. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import UsageError

# mpirun's nodes start at the same time as its launcher, within a second or two.
MPI_START_SECONDS = 60
# Set by the launcher, as are those that begin with PET_.
RESERVED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
# Where the ranks meet. srun sets neither.
MEETING = ("MASTER_ADDR", "MASTER_PORT")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Programs that start ranks: a manifest starts them, and its command is one rank's.
_OF_SEVERAL_RANKS = ("launch", "mpi-launch", "mpirun", "srun", "torchrun")


def check_command(command: Sequence[str], example: str) -> None:
    """Check the command of a cluster or a job. Raises UsageError, with the example if there is no command."""
    if not command:
        raise UsageError(f"no command: write it after --, for example {example}")
    if not command[0] or command[0].startswith("-"):
        raise UsageError(f"the command begins with {command[0]!r}, expected train, run, bench or a program")


def check_rank_command(command: Sequence[str], example: str) -> None:
    """Like check_command, for the command of each rank in a manifest."""
    check_command(command, example)
    if command[0] in _OF_SEVERAL_RANKS:
        raise UsageError(
            f"the command begins with {command[0]}, expected train, run or bench: the manifest starts the ranks"
        )


def assignment(flag: str, text: str, reserved: Sequence[str] = MEETING) -> tuple[str, str]:
    """The name and the value of NAME=VALUE, a variable of the ranks in a manifest. Raises UsageError.

    `reserved`: variables that cannot be set, in addition to those that place a rank.
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"{flag} {text!r}: expected NAME=VALUE")
    check_variable(flag, name, reserved)
    return name, value


def check_variable(flag: str, name: str, reserved: Sequence[str] = MEETING) -> None:
    """Check the name of a variable that the user gives to the ranks. Raises UsageError."""
    if not VARIABLE.fullmatch(name):
        raise UsageError(f"{flag}: {name!r} is not a variable name, expected letters, digits and '_'")
    if name in (*RESERVED, *reserved) or name.startswith("PET_"):
        raise UsageError(f"{flag} {name}: the launcher sets this variable: remove it")
    if name == contract.RANKS_PER_NODE:
        raise UsageError(f"{flag} {name}: use --ranks-per-node")


def check_distinct(flag: str, texts: Sequence[str]) -> None:
    """Raises UsageError if two of the texts NAME=VALUE have the same name."""
    names = [text.partition("=")[0] for text in texts]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"{flag}: {', '.join(repeated)} is given twice, expected once")


def launch(
    command: Sequence[str],
    *,
    ranks_per_node: int | None,
    nodes: int | None = None,
    node_rank: int | None = None,
    master_addr: str | None = None,
    master_port: int | None = None,
    timeout: int | None = None,
) -> list[str]:
    """One node's `launch`, which runs torchrun's agent. `ranks_per_node` None: one rank for each NUMA node.

    Without `nodes` and the options after it, torchrun's PET_* variables say where the nodes meet.
    """
    options = {
        "nnodes": nodes,
        "node-rank": node_rank,
        "master-addr": master_addr,
        "master-port": master_port,
        "nproc-per-node": "auto" if ranks_per_node is None else ranks_per_node,
        "timeout": timeout,
    }
    return ["launch", *_flags(options), "--", *command]


def mpi_launch(
    command: Sequence[str],
    *,
    variables: Iterable[str],
    hosts: Sequence[str] | None = None,
    ranks_per_node: int | None = None,
    port: int | None = None,
    timeout: int | None = None,
) -> list[str]:
    """`mpi-launch`, which runs mpirun for all nodes. The ranks get only those `variables` of its environment.

    Without `hosts` and `ranks_per_node`, Intel MPI's variables name the nodes.
    """
    options = {
        "hosts": ",".join(hosts) if hosts else None,
        "ranks-per-node": ranks_per_node,
        "port": port,
        "timeout": timeout,
    }
    return ["mpi-launch", *_flags(options), *(f"--env={name}" for name in variables), "--", *command]


def _flags(options: Mapping[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in options.items() if value is not None]
