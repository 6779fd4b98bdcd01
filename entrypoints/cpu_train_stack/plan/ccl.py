"""oneCCL's variables, and the cores that its worker threads have to themselves. Pure and torch-free.

`planner` decides on workers; the process group sets the rest, because only it knows the interface and whether
/dev/shm has room. Every variable is oneCCL's or libfabric's own. A variable that the user has set stays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import cycle, islice

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.numbers import count
from cpu_train_stack.machine.cpus import parse_cpu_list
from cpu_train_stack.machine.shared_memory import QUEUE_LENGTH
from cpu_train_stack.placement.detect import DistributedEnvironment
from cpu_train_stack.plan.cores import Share
from cpu_train_stack.plan.notes import Notes

# A worker may cost one core in sixteen. With fewer cores, the loss of compute time outweighs the gain from
# communicating at the same time.
CORES_WORTH_A_WORKER = 16


def group_variables(environment: DistributedEnvironment, interface: str, shared_memory: bool) -> dict[str, str]:
    """The variables for one rank's group. Those of the plan (`worker_variables`) take precedence.

    `shared_memory`: this node has several ranks, and /dev/shm has room for all of them.
    """
    chosen = {
        # Rank and size come from this stack, not from a launcher's variables, which oneCCL would look for.
        "CCL_PROCESS_LAUNCHER": "none",
        "CCL_LOCAL_RANK": str(environment.local_rank),
        "CCL_LOCAL_SIZE": str(environment.local_world_size),
        "CCL_ATL_TRANSPORT": "ofi",
        "CCL_ATL_SHM": "1" if shared_memory else "0",
        "FI_PROVIDER": "tcp,shm" if shared_memory else "tcp",
        "FI_TCP_IFACE": interface,
        # A worker that shares its core with compute threads costs a thousandfold in latency. Without workers, the
        # thread that waits for a collective drives it.
        "CCL_WORKER_OFFLOAD": "0",
        # oneCCL's own default. accelerate up to 1.12 uses a ccl group only if the variable is set.
        "CCL_WORKER_COUNT": "1",
        # While the ranks connect, oneCCL waits only 60 s for another rank's address. A rank of a busy machine may
        # take longer, and the group's timeout ends the wait for one that has failed.
        "CCL_KVS_GET_TIMEOUT": "1800",
        # oneCCL's warnings are about settings that are chosen here on purpose.
        "CCL_LOG_LEVEL": "error",
    }
    if shared_memory:
        # Large messages go in pieces through the shared segment instead of the kernel's copy between processes,
        # which many containers forbid. all_reduce of 25 MiB by two ranks: fp32 3.4 ms instead of 5.5 ms, bf16
        # 5.0 ms instead of 6.9 ms.
        chosen["FI_SHM_DISABLE_CMA"] = "1"
        chosen["FI_SHM_TX_SIZE"] = chosen["FI_SHM_RX_SIZE"] = str(QUEUE_LENGTH)
    if shared_memory and not environment.several_nodes:
        # Each rank sums its part of all tensors, instead of a ring: 25 MiB then takes 3.1 ms, and 100 MiB 10.8 ms
        # instead of 16.2 ms; three and four ranks gain too. Small messages and several nodes would lose.
        chosen["CCL_ALLREDUCE"] = "nreduce:16384-max"
    return chosen


def worker_cores(
    environment: DistributedEnvironment,
    share: Share,
    backend: str,
    threads: int | None,
    environ: Mapping[str, str],
    notes: Notes,
) -> tuple[int, ...]:
    """The CPUs to keep for workers, one each, from the end of the share. `threads`: if set by the user.

    All ranks of a node keep the same number: the smallest share decides. Raises UsageError for an invalid
    CCL_WORKER_COUNT or CCL_WORKER_AFFINITY.
    """
    if environment.world_size == 1:
        return ()
    if backend != "ccl":
        notes.reasons.append(f"no core is kept for communication: {backend} has no worker threads to bind")
        return ()
    own = _users_own(environ)
    wanted = _worker_count(own, share)
    if own.get("CCL_WORKER_OFFLOAD") == "0":
        notes.reasons.append("CCL_WORKER_OFFLOAD=0 is set by the user: no core is kept for workers")
        return ()
    if "CCL_WORKER_AFFINITY" in own:
        return _users_cores(own["CCL_WORKER_AFFINITY"], notes)
    if wanted == 0:
        notes.reasons.append(
            f"CCL_WORKER_OFFLOAD=0: with {count(share.smallest, 'core')} for each rank, a core for a worker costs "
            f"more than it gains (it pays off from {CORES_WORTH_A_WORKER} cores), and a worker that shares a core "
            "with compute threads is far slower than none; the waiting thread drives the communication"
        )
        return ()
    if not share.can_spare(wanted, threads or 1):
        notes.reasons.append(
            f"CCL_WORKER_OFFLOAD={own.get('CCL_WORKER_OFFLOAD', '0')}: no core is free of compute threads for "
            f"{count(wanted, 'worker')}"
        )
        if own:
            named = " ".join(f"{name}={value}" for name, value in own.items())
            notes.warnings.append(
                f"{named}, but the rank has no cores to spare for workers: unset {' and '.join(own)}, lower "
                "OMP_NUM_THREADS, or give the rank more cores"
            )
        return ()
    kept = share.cores[len(share.cores) - wanted :]
    origin = "(CCL_WORKER_COUNT)" if "CCL_WORKER_COUNT" in own else f"of {len(share.cores)}"
    notes.reasons.append(
        f"{count(wanted, 'core')} {origin} kept for oneCCL's workers, with all hardware threads: workers poll, "
        "and would compete with compute threads on the same core"
    )
    return tuple(core.cpus[0] for core in kept)


def worker_variables(
    environment: DistributedEnvironment,
    backend: str,
    worker_cpus: tuple[int, ...],
    share: Share,
    environ: Mapping[str, str],
) -> dict[str, str]:
    """The variables for these workers, without those that the user has set."""
    if backend != "ccl" or environment.world_size == 1:
        return {}
    own = _users_own(environ)
    if "CCL_WORKER_AFFINITY" in own:  # the user's list belongs to the user's count
        return {"CCL_WORKER_OFFLOAD": own.get("CCL_WORKER_OFFLOAD", "1" if worker_cpus else "0")}
    if worker_cpus:
        chosen = {
            "CCL_WORKER_OFFLOAD": "1",
            "CCL_WORKER_COUNT": str(len(worker_cpus)),
            "CCL_WORKER_AFFINITY": _everyones(worker_cpus, environment),
        }
    else:
        chosen = {"CCL_WORKER_OFFLOAD": own.get("CCL_WORKER_OFFLOAD", "0")}
        if "CCL_WORKER_COUNT" in own:
            # Under mpirun, oneCCL looks for a core for each worker, also for those without a thread, and fails.
            cpus = islice(cycle(core.cpus[0] for core in share.cores), int(own["CCL_WORKER_COUNT"]))
            chosen["CCL_WORKER_AFFINITY"] = _everyones(tuple(cpus), environment)
        return chosen
    return {name: value for name, value in chosen.items() if name not in own}


def _everyones(worker_cpus: tuple[int, ...], environment: DistributedEnvironment) -> str:
    """oneCCL expects one list for all ranks of the node, rank by rank, and takes this rank's part of it."""
    return ",".join(map(str, worker_cpus * environment.local_world_size))


def _users_own(environ: Mapping[str, str]) -> dict[str, str]:
    """The user's variables for workers. Manifests may set a variable to nothing."""
    names = ("CCL_WORKER_OFFLOAD", "CCL_WORKER_COUNT", "CCL_WORKER_AFFINITY")
    return {name: environ[name] for name in names if environ.get(name, "auto") not in ("", "auto")}


def _worker_count(own: Mapping[str, str], share: Share) -> int:
    """`own`: the user's variables. With CCL_WORKER_OFFLOAD=1, oneCCL starts a worker."""
    number = own.get("CCL_WORKER_COUNT", "1" if "CCL_WORKER_OFFLOAD" in own else "")
    if number and not re.fullmatch(r"[1-9][0-9]{0,2}", number):
        raise UsageError(
            f"CCL_WORKER_COUNT is {number!r}, expected a number of threads, 1 or more: correct or unset it"
        )
    return int(number) if number else int(share.smallest >= CORES_WORTH_A_WORKER)


def _users_cores(listed: str, notes: Notes) -> tuple[int, ...]:
    try:
        cpus = parse_cpu_list(listed)
    except ValueError as error:
        raise UsageError(
            f"CCL_WORKER_AFFINITY is {listed!r}, expected CPU numbers (3,4 or 3-4) or auto: correct or unset it"
        ) from error
    notes.reasons.append(f"CCL_WORKER_AFFINITY={listed} is set by the user: compute threads do not use these CPUs")
    return tuple(sorted(cpus))
