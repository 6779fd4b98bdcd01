"""Cores that oneCCL's worker threads have for themselves, where a rank can spare them. Pure and torch-free."""

from __future__ import annotations

import re
from collections.abc import Mapping

from entrypoints.cli.errors import UsageError
from entrypoints.cli.numbers import count
from entrypoints.machine.cpus import parse_cpu_list
from entrypoints.placement.detect import DistributedEnvironment
from entrypoints.plan.notes import Notes
from entrypoints.plan.share import Share

# One core in sixteen is what a worker may cost: below, the computing that is lost outweighs what is won by
# communicating beside it.
CORES_WORTH_A_WORKER = 16


def worker_cores(
    environment: DistributedEnvironment,
    share: Share,
    backend: str,
    threads: int | None,
    environ: Mapping[str, str],
    notes: Notes,
) -> tuple[int, ...]:
    """The CPUs to keep for workers, one each, from the end of the share. `threads`: the user's own, or None.

    All ranks of a node keep the same number: the smallest share decides. Raises UsageError for an invalid
    CCL_WORKER_COUNT or CCL_WORKER_AFFINITY.
    """
    if backend != "ccl":
        if environment.world_size > 1:
            notes.reasons.append(f"no core is kept for communication: {backend} has no worker threads to bind")
        return ()
    if environment.world_size == 1:
        return ()
    if environ.get("CCL_WORKER_OFFLOAD", "1") == "0":
        notes.reasons.append("CCL_WORKER_OFFLOAD=0 is the user's own: no core is kept for workers")
        return ()
    listed = environ.get("CCL_WORKER_AFFINITY", "")
    if listed and listed != "auto":
        return _users(listed, notes)
    wanted = _wanted(environ, share)
    if wanted == 0:
        notes.reasons.append(
            f"CCL_WORKER_OFFLOAD=0: with {count(share.smallest, 'core')} a rank, a core for a worker costs more "
            f"than it gains (it pays off from {CORES_WORTH_A_WORKER} cores on), and a worker that shares a core "
            "with compute threads is far slower than none; the waiting thread drives the communication"
        )
        return ()
    if not share.can_spare(wanted, threads or 1):
        notes.reasons.append(
            f"CCL_WORKER_OFFLOAD=0: no core is free of compute threads for {count(wanted, 'worker')}"
        )
        if environ.get("CCL_WORKER_COUNT"):
            notes.warnings.append(
                f"CCL_WORKER_COUNT={environ['CCL_WORKER_COUNT']}, but the rank has no cores to spare for workers: "
                "lower OMP_NUM_THREADS, or give the rank more cores"
            )
        return ()
    kept = share.cores[len(share.cores) - wanted :]
    origin = "as CCL_WORKER_COUNT asks" if environ.get("CCL_WORKER_COUNT") else f"of {len(share.cores)}"
    notes.reasons.append(
        f"{count(wanted, 'core')} {origin} kept for oneCCL's workers, with all its hardware threads: they poll, "
        "and beside compute threads they would take turns with them"
    )
    return tuple(core.cpus[0] for core in kept)


def variables(worker_cpus: tuple[int, ...], local_world_size: int, environ: Mapping[str, str]) -> dict[str, str]:
    """oneCCL's variables for these workers; what the user has set is left out."""
    if not worker_cpus:
        return {"CCL_WORKER_OFFLOAD": environ.get("CCL_WORKER_OFFLOAD", "0")}
    if environ.get("CCL_WORKER_AFFINITY", "auto") != "auto":  # the user's list belongs to the user's count
        return {} if "CCL_WORKER_OFFLOAD" in environ else {"CCL_WORKER_OFFLOAD": "1"}
    # oneCCL reads the list as that of all ranks of the node, one after the other, and takes its own part of it.
    everyone = ",".join(map(str, worker_cpus * local_world_size))
    chosen = {
        "CCL_WORKER_OFFLOAD": "1",
        "CCL_WORKER_COUNT": str(len(worker_cpus)),
        "CCL_WORKER_AFFINITY": everyone,
    }
    return {name: value for name, value in chosen.items() if environ.get(name, "auto") == "auto"}


def _wanted(environ: Mapping[str, str], share: Share) -> int:
    own = environ.get("CCL_WORKER_COUNT", "")
    if own and not re.fullmatch(r"[1-9][0-9]{0,2}", own):
        raise UsageError(
            f"CCL_WORKER_COUNT is {own!r}, expected a number of threads from 1 on: correct or unset it"
        )
    return int(own) if own else int(share.smallest >= CORES_WORTH_A_WORKER)


def _users(listed: str, notes: Notes) -> tuple[int, ...]:
    try:
        cpus = parse_cpu_list(listed)
    except ValueError as error:
        raise UsageError(
            f"CCL_WORKER_AFFINITY is {listed!r}, expected CPU numbers (3,4 or 3-4) or auto: correct or unset it"
        ) from error
    notes.reasons.append(f"CCL_WORKER_AFFINITY={listed} is the user's own: compute threads keep off these CPUs")
    return tuple(sorted(cpus))
