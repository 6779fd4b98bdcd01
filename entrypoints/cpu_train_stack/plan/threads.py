"""The user's OMP_NUM_THREADS, the reason for the number of threads, and their placement. Torch-free.

`planner.plan` decides the number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.numbers import count, whole_number
from cpu_train_stack.machine.facts import Core
from cpu_train_stack.placement.detect import DistributedEnvironment
from cpu_train_stack.placement.launchers import TORCHRUN
from cpu_train_stack.plan.cores import Share
from cpu_train_stack.plan.notes import Notes
from cpu_train_stack.plan.preload import Preloads, split

# The role under which `launch` starts its ranks. torchrun passes it to them as ROLE_NAME.
LAUNCH_ROLE = "cpu-train-stack"
_PLACEMENT = ("KMP_AFFINITY", "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY")


def users_threads(environment: DistributedEnvironment, environ: Mapping[str, str], notes: Notes) -> str | None:
    """The user's OMP_NUM_THREADS, or None if the plan chooses. Raises UsageError for an invalid value."""
    own = environ.get("OMP_NUM_THREADS", "")
    if (
        own == "1"
        and environment.launcher == TORCHRUN.name
        and environment.local_world_size > 1
        and environ.get("ROLE_NAME") != LAUNCH_ROLE
    ):
        notes.reasons.append(
            "OMP_NUM_THREADS=1 is torchrun's default for several ranks on a node: replaced "
            "(to force 1, start the ranks with this stack's launch)"
        )
        return None
    if own and not re.fullmatch(r"[1-9][0-9]{0,4}(,[1-9][0-9]{0,4})*", own):
        raise UsageError(
            f"OMP_NUM_THREADS is {own!r}, expected a number of threads, 1 or more: correct or unset it"
        )
    return own or None


def warn_of_overrides(
    environment: DistributedEnvironment, threads: int, environ: Mapping[str, str], notes: Notes
) -> None:
    """Warn of the user's variables that make torch use other threads or CPUs than those of the plan."""
    mkl = environ.get("MKL_NUM_THREADS", "")
    if mkl and whole_number(mkl) not in (None, 0, threads):  # MKL ignores other texts, and 0
        notes.warnings.append(
            f"MKL_NUM_THREADS={mkl}, expected {threads} as in OMP_NUM_THREADS: torch uses MKL's number for "
            "all of its threads: unset MKL_NUM_THREADS"
        )
    listed = environ.get("GOMP_CPU_AFFINITY")
    if listed and environment.local_world_size > 1:  # unlike KMP_AFFINITY, not limited to the rank's own CPUs
        notes.warnings.append(
            f"GOMP_CPU_AFFINITY={listed} with {environment.local_world_size} ranks on this node: ranks with "
            "the same value compute on the same CPUs: unset GOMP_CPU_AFFINITY"
        )


def explain_threads(own: str | None, threads: int, share: Share, kept: int, notes: Notes) -> None:
    """Notes the reason for `threads`. `kept`: cores of the share that are kept for communication."""
    if own is not None:
        notes.reasons.append(f"OMP_NUM_THREADS={own} is set by the user")
        if threads > share.most_threads:
            limit = count(len(share.cores), "core")
            if share.limited:
                limit = f"{share.quota:g} CPUs of processor time"
            # torch may use fewer, because MKL has a limit of its own. The banner has torch's number.
            notes.warnings.append(
                f"OMP_NUM_THREADS={own}, but this rank has {limit}: more threads than cores are slow"
            )
    elif share.limited_by_ranks:
        notes.reasons.append(f"OMP_NUM_THREADS={threads}: at least {share.sharing} ranks share these cores")
    elif share.crowded:
        notes.reasons.append(f"OMP_NUM_THREADS={threads}: there are more ranks than CPUs")
    elif share.limited:
        notes.reasons.append(f"OMP_NUM_THREADS={threads}: {_under_quota(threads, share.quota)}")
    else:
        rest = f", except {count(kept, 'core')} for communication" if kept else ""
        notes.reasons.append(
            f"OMP_NUM_THREADS={threads}: one thread for each of the rank's physical cores{rest}; "
            "a second thread on a core would compete for the same arithmetic units"
        )


def _under_quota(threads: int, quota: float) -> str:
    if threads > quota:
        return (
            f"more threads than the quota's {quota:g} CPUs: the pauses when the quota is used up cost less than "
            "the time that fewer threads would leave unused"
        )
    return f"no more threads than the quota's {quota:g} CPUs, so the kernel has no reason to pause them"


def openmp_variables(
    share: Share,
    computing: Sequence[Core],
    threads: int,
    environ: Mapping[str, str],
    preloads: Preloads,
    notes: Notes,
) -> dict[str, str]:
    """Intel OpenMP's variables; none if its library is not loaded. `computing`: the cores for compute threads."""
    paths = [*preloads.paths, *split(environ.get("LD_PRELOAD", ""))]
    if not any(Path(path).name.startswith("libiomp5") for path in paths):
        return {}
    chosen: dict[str, str] = {}
    if "KMP_BLOCKTIME" in environ:
        notes.reasons.append(f"KMP_BLOCKTIME={environ['KMP_BLOCKTIME']} is set by the user")
    else:
        chosen["KMP_BLOCKTIME"] = "1"
        notes.reasons.append("KMP_BLOCKTIME=1: idle threads sleep after 1 ms and leave the cores to data loading")
    users = next((name for name in _PLACEMENT if name in environ), None)
    if users:
        notes.reasons.append(f"{users}={environ[users]} is set by the user and places the threads")
        return chosen
    if share.shares_cores or threads > len(computing):
        notes.reasons.append(
            "threads are not placed: other processes use these cores, or there are fewer cores than threads; the "
            "kernel finds idle CPUs"
        )
    elif all(len(core.cpus) == 1 for core in computing):
        notes.reasons.append("threads are not placed: each of the rank's cores has one hardware thread")
    else:
        chosen["KMP_AFFINITY"] = affinity(core.cpus[0] for core in computing)
        notes.reasons.append(
            "KMP_AFFINITY: compute threads use one hardware thread of each core, so that no two share a core; the "
            "second hardware threads are for data loading and communication"
        )
    return chosen


def affinity(cpus: Iterable[int]) -> str:
    """KMP_AFFINITY for threads that may run on all of these CPUs, none bound to a single CPU.

    A bound thread would wait while another program uses its CPU, and processes that the main thread starts would
    inherit its CPU. libiomp5 gives forked children, which load data, the process's complete mask.
    """
    return "granularity=fine,proclist=[{" + ",".join(map(str, sorted(cpus))) + "}],explicit"
