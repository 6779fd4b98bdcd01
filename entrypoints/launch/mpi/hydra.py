"""The command line and the environment of Intel MPI's mpirun. Pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from entrypoints import contract

# Everything that ranks and launcher listen at on a network with firewalls, with sshd's port beside it: here the
# first port is where the ranks meet, the others are hydra's and libfabric's.
FIRST_PORT, LAST_PORT = contract.MASTER_PORT, 29999
PORT_RANGE = f"{FIRST_PORT + 1}:{LAST_PORT}"
# What mpirun is but for its search for a batch system; signals reach it directly.
PROGRAM = "mpiexec.hydra"
# What of the launcher's environment every rank gets. hydra by itself hands on all of it, secrets included.
HANDED_ON = (
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
    """mpirun for `ranks` of `command` in all. `names`: variables to hand on beside HANDED_ON; no value is in
    the command line, where every user of a host can read it."""
    return [
        PROGRAM,
        "-f",
        str(hostfile),
        "-n",
        str(ranks),
        "-ppn",
        str(ranks_per_node),
        "-genvlist",
        ",".join(dict.fromkeys((*HANDED_ON, *names))),
        "-prepend-rank",
        *command,
    ]


def environ(base: Mapping[str, str], hosts: Sequence[str], ssh_config: Path) -> dict[str, str]:
    """The launcher's environment. The ranks meet on the first host; a user's own MASTER_* and ports stay."""
    return {
        "I_MPI_PORT_RANGE": PORT_RANGE,
        "MASTER_ADDR": hosts[0],
        "MASTER_PORT": str(contract.MASTER_PORT),
        **base,
        # The wheel has no script that sets it.
        "I_MPI_ROOT": sys.prefix,
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": f"-F {ssh_config}",
    }
