"""What /proc tells of other processes of this container. Torch-free; a test can replace the folder `proc`."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

PROC = Path("/proc")
# A rank may be stopped for a moment by a debugger or a snapshot: after so long the user wants to know.
STOPPED_SECONDS = 2.0
_POLL_SECONDS = 0.5


def state(pid: int, proc: Path = PROC) -> str:
    """The kernel's letter for what a process does (proc(5)): T is stopped, Z has ended. Empty where it is gone."""
    return (_stat(pid, proc) or [""])[0]


def children(pid: int, proc: Path = PROC) -> list[int]:
    """The processes that `pid` has started and that are still there."""
    numbers = (int(path.name) for path in proc.iterdir() if path.name.isdigit())
    return sorted(number for number in numbers if _stat(number, proc)[1:2] == [str(pid)])


def variables(pid: int, proc: Path = PROC) -> dict[str, str]:
    """The environment that a process was started with; empty where it may not be read."""
    try:
        entries = (proc / str(pid) / "environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def stopped_line(rank: object, local_rank: object, node_rank: object) -> str:
    """What is told of a rank that a signal has stopped."""
    return f"rank {rank} (local {local_rank}, node {node_rank}) is stopped (SIGSTOP): the others wait for it"


def tell_of_stopped_ranks(node: object) -> None:
    """Says of each rank that this process has started that it is stopped, once, as long as this process runs."""
    threading.Thread(target=_watch, args=(node,), daemon=True).start()


def _watch(node: object) -> None:
    polls: dict[int, int] = {}
    done = threading.Event()
    while not done.wait(_POLL_SECONDS):
        for pid in children(os.getpid()):
            polls[pid] = polls.get(pid, 0) + 1 if state(pid) == "T" else 0
            place = variables(pid) if polls[pid] == STOPPED_SECONDS / _POLL_SECONDS else {}
            if "RANK" in place:
                line = stopped_line(place["RANK"], place.get("LOCAL_RANK"), node)
                print(line, file=sys.stderr, flush=True)


def _stat(pid: int, proc: Path) -> list[str]:
    """The fields behind the name, which may hold anything: state, parent, and so on."""
    try:
        return (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
