"""The command line and the environment of Intel MPI's mpirun. Pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from cpu_train_stack import contract

# The ports to open in a firewall, besides sshd's: the ranks meet on the first, hydra and libfabric use the others.
FIRST_PORT, LAST_PORT = contract.MASTER_PORT, 29999
PORT_RANGE = f"{FIRST_PORT + 1}:{LAST_PORT}"
# mpirun without its search for a batch system. Signals reach this program directly.
PROGRAM = "mpiexec.hydra"
# The launcher's variables that every rank gets. By default, hydra passes all variables on, including secrets.
PASSED_ON = (
    contract.IMAGE,
    contract.PIN,
    "MASTER_ADDR",
    "MASTER_PORT",
    "PATH",
    "PYTHONUNBUFFERED",
)


def argv(
    hostfile: Path, ranks: int, ranks_per_node: int, names: Sequence[str], command: Sequence[str]
) -> list[str]:
    """mpirun's command line for `ranks` ranks of `command` on all nodes.

    `names`: variables to pass on besides PASSED_ON. Values are not on the command line, which every user of a
    host can read.
    """
    return [
        PROGRAM,
        "-f",
        str(hostfile),
        "-n",
        str(ranks),
        "-ppn",
        str(ranks_per_node),
        "-genvlist",
        ",".join(dict.fromkeys((*PASSED_ON, *names))),
        "-prepend-rank",
        *command,
    ]


def escape(words: Sequence[str]) -> list[str]:
    """The arguments of a rank's command without a `:`, which separates the programs of mpirun's command line."""
    return [f"{word}:" if word and not word.strip(":") else word for word in words]


def unescape(words: Sequence[str]) -> list[str]:
    """The reverse of `escape`."""
    return [word[:-1] if word and not word.strip(":") else word for word in words]


def environ(base: Mapping[str, str], hosts: Sequence[str], ssh_config: Path) -> dict[str, str]:
    """mpirun's environment. The ranks meet on the first host, unless `base` sets MASTER_* or ports."""
    return {
        "I_MPI_PORT_RANGE": PORT_RANGE,
        "MASTER_ADDR": hosts[0],
        "MASTER_PORT": str(contract.MASTER_PORT),
        **base,
        # The wheel has no script that sets this variable.
        "I_MPI_ROOT": sys.prefix,
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": f"-F {ssh_config}",
    }
