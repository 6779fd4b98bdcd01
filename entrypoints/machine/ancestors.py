"""The CPU masks of the processes above this one: who has bound a rank, and to a part of what. Torch-free."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from entrypoints.machine.cpus import parse_cpu_list

# The processes that start ranks, as the kernel names them (15 characters). Their own CPU mask is the one that
# a launcher divides when it pins its ranks.
_LAUNCHERS = {
    "hydra_pmi_proxy",
    "orted",
    "prted",
    "mpirun",
    "mpiexec",
    "orterun",
    "mpirun.openmpi",  # Debian's names; Open MPI 4's mpirun starts the ranks of its own node itself
    "mpiexec.openmpi",
    "prterun",
    "mpispawn",
    "mpiexec.hydra",
    "slurmstepd",
    "flux-shell",
}
# torchrun's agent, by the name of its script or of its interpreter.
_AGENT = re.compile(r"torchrun|python[\d.]*|pt_main_thread")


@dataclass(frozen=True)
class Masks:
    """`own`: this process's. `launcher`: the nearest MPI or Slurm process's. `agent`: the nearest Python's.

    `parent`: that of the process that started this one. None where there is no such process.
    """

    own: frozenset[int]
    mems: frozenset[int]
    parent: frozenset[int] | None = None
    agent: frozenset[int] | None = None
    launcher: frozenset[int] | None = None


def read(root: Path = Path("/")) -> Masks:
    """The masks that `root`/proc shows. `mems`: the NUMA nodes that this process may take memory from."""
    proc = root / "proc"
    status = _status(proc / "self")
    own = parse_cpu_list(status["Cpus_allowed_list"])
    mems = parse_cpu_list(status.get("Mems_allowed_list", "0"))
    above: list[tuple[str, frozenset[int]]] = []
    while status["PPid"] != "0":
        try:
            status = _status(proc / status["PPid"])
        except OSError:  # hidden from this user (hidepid): as good as none
            break
        above.append((status["Name"], parse_cpu_list(status["Cpus_allowed_list"])))
    return Masks(
        own=own,
        mems=mems,
        parent=above[0][1] if above else None,
        agent=next((mask for name, mask in above if _AGENT.fullmatch(name)), None),
        launcher=next((mask for name, mask in above if name in _LAUNCHERS), None),
    )


def _status(process: Path) -> dict[str, str]:
    return dict(re.findall(r"^(\w+):[ \t]*(.*)$", (process / "status").read_text(), re.MULTILINE))
