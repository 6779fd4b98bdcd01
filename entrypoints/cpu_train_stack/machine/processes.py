"""Processes in /proc: state, children, variables, mapped files, CPU masks of the processes above. Torch-free.

A test can replace the folder `proc`, or the root above it.
"""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path

from cpu_train_stack.cli import files
from cpu_train_stack.cli.say import say
from cpu_train_stack.machine.cpus import parse_cpu_list

PROC = Path("/proc")
# A debugger or a snapshot may stop a rank for a moment: report it only after this time.
STOPPED_SECONDS = 2.0
_POLL_SECONDS = 0.5

# The processes that start ranks, as the kernel names them (15 characters). A launcher that binds its ranks divides
# its own CPU mask among them.
_LAUNCHERS = {
    "hydra_pmi_proxy",
    "orted",
    "prted",
    "mpirun",
    "mpiexec",
    "orterun",
    "mpirun.openmpi",  # Debian's names; Open MPI 4's mpirun also starts the ranks of its node
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
class CpuMasks:
    """`own`: this process's mask. `parent`: its parent's.

    `launcher`: the mask of the nearest process of _LAUNCHERS above. `agent`: of the nearest Python process above.
    None if there is no such process. `mems`: the NUMA nodes from which this process may take memory.
    """

    own: frozenset[int]
    mems: frozenset[int]
    parent: frozenset[int] | None = None
    agent: frozenset[int] | None = None
    launcher: frozenset[int] | None = None


def cpu_masks(root: Path = Path("/")) -> CpuMasks:
    """The masks of this process and of the processes above it, from `root`/proc."""
    proc = root / "proc"
    status = _status(proc / "self")
    own = parse_cpu_list(status["Cpus_allowed_list"])
    mems = parse_cpu_list(status.get("Mems_allowed_list", "0"))
    above: list[tuple[str, frozenset[int]]] = []
    while status["PPid"] != "0":
        try:
            status = _status(proc / status["PPid"])
        except OSError:  # hidden from this user (hidepid)
            break
        above.append((status["Name"], parse_cpu_list(status["Cpus_allowed_list"])))
    return CpuMasks(
        own=own,
        mems=mems,
        parent=above[0][1] if above else None,
        agent=next((mask for name, mask in above if _AGENT.fullmatch(name)), None),
        launcher=next((mask for name, mask in above if name in _LAUNCHERS), None),
    )


def mapped_files(maps: Path = PROC / "self/maps") -> frozenset[str]:
    """The files that this process has mapped, and so really loaded, as paths without symbolic links."""
    return frozenset(line.split(maxsplit=5)[5] for line in maps.read_text().splitlines() if line.count("/"))


def state(pid: int) -> str:
    """The state of a process as in proc(5): T is stopped, Z is a zombie. Empty if the process does not exist."""
    return (_stat(pid) or [""])[0]


def children(pid: int) -> list[int]:
    numbers = (int(path.name) for path in PROC.iterdir() if path.name.isdigit())
    return sorted(number for number in numbers if _stat(number)[1:2] == [str(pid)])


def variables(pid: int) -> dict[str, str]:
    """The environment with which a process was started; empty if it cannot be read."""
    entries = files.text(PROC / str(pid) / "environ").split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def stopped_line(rank: object, local_rank: object, node_rank: object) -> str:
    """The message about a rank that a signal has stopped."""
    return f"rank {rank} (local {local_rank}, node {node_rank}) is stopped (SIGSTOP): the other ranks wait for it"


def report_stopped_ranks(node: object) -> None:
    """Report each stopped (SIGSTOP) child rank once, from a background thread."""
    threading.Thread(target=_watch, args=(node,), daemon=True).start()


def _watch(node: object) -> None:
    polls: dict[int, int] = {}
    done = threading.Event()
    while not done.wait(_POLL_SECONDS):
        for pid in children(os.getpid()):
            polls[pid] = polls.get(pid, 0) + 1 if state(pid) == "T" else 0
            place = variables(pid) if polls[pid] == STOPPED_SECONDS / _POLL_SECONDS else {}
            if "RANK" in place:
                say(stopped_line(place["RANK"], place.get("LOCAL_RANK"), node))


def _status(process: Path) -> dict[str, str]:
    return dict(re.findall(r"^(\w+):[ \t]*(.*)$", (process / "status").read_text(), re.MULTILINE))


def _stat(pid: int) -> list[str]:
    """The fields after the name (which may hold anything): state, parent, ..."""
    return files.text(PROC / str(pid) / "stat").rpartition(")")[2].split()
