"""What one rank gets: cores, threads, variables, preloads, and why. Pure and torch-free."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

from entrypoints.environment import DistributedEnvironment, variables
from entrypoints.environment import warnings as environment_warnings
from entrypoints.errors import UsageError
from entrypoints.launchers import TORCHRUN
from entrypoints.preload import Preloads, compose
from entrypoints.topology import EMULATED, Topology

# The role under which our own `launch` starts its ranks; torchrun passes it to them as ROLE_NAME.
LAUNCH_ROLE = "cpu-train-stack"
# torch prints a page of C++ frames for each attempt to reach a node that is not up yet.
QUIET = "FATAL"
_T = TypeVar("_T")


@dataclass(frozen=True)
class RankPlan:
    """`cores`: CPU numbers that the rank is bound to. `environment`: every variable that will be set.

    `preload`: the paths added to LD_PRELOAD. `ccl_worker_cores`: cores kept for communication threads; gloo
    has none. Prints as JSON with `document`.
    """

    placement: DistributedEnvironment
    cores: tuple[int, ...]
    omp_num_threads: int
    ccl_worker_cores: tuple[int, ...]
    environment: Mapping[str, str]
    preload: tuple[str, ...]
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]

    def document(self) -> dict[str, object]:
        fields = asdict(self)
        return {**fields.pop("placement"), **fields}


def plan(
    environment: DistributedEnvironment, topology: Topology, user_environ: Mapping[str, str], preloads: Preloads
) -> RankPlan:
    """Divide the allowed cores among the node's ranks and derive the rest. A user's own variable always wins.

    Raises UsageError for a user's OMP_NUM_THREADS that is not a number of threads.
    """
    reasons: list[str] = []
    warnings = environment_warnings(environment, user_environ)
    cores = _share(environment, topology, reasons, warnings)
    cpus = tuple(sorted(cpu for core in cores for cpu in core))
    threads = _threads(environment, len(cores), user_environ, reasons, warnings)
    chosen = variables(environment)
    chosen["OMP_NUM_THREADS"] = user_environ["OMP_NUM_THREADS"] if threads is None else str(threads)
    if any("libiomp5" in path for path in preloads.paths):
        _intel_openmp(chosen, user_environ, reasons)
    if "TORCH_CPP_LOG_LEVEL" not in user_environ:
        chosen["TORCH_CPP_LOG_LEVEL"] = QUIET
        reasons.append(
            f"TORCH_CPP_LOG_LEVEL={QUIET}: torch's C++ errors arrive as exceptions, its log repeats them"
        )
    if preloads.paths:
        chosen["LD_PRELOAD"] = compose(user_environ.get("LD_PRELOAD", ""), preloads.paths)
    bf16 = "the CPU has no bf16 instructions and emulates them" if topology.bf16 == EMULATED else topology.bf16
    return RankPlan(
        placement=environment,
        cores=cpus,
        omp_num_threads=int(chosen["OMP_NUM_THREADS"].split(",")[0]),
        ccl_worker_cores=(),
        environment=chosen,
        preload=preloads.paths,
        reasons=(*reasons, *preloads.reasons, f"bf16: {bf16}"),
        warnings=(*warnings, *preloads.warnings),
    )


def divide(items: Sequence[_T], parts: int, index: int) -> Sequence[_T]:
    """The `index`-th of `parts` contiguous shares of `items`, whose sizes differ by one at most."""
    size, longer = divmod(len(items), parts)
    start = index * size + min(index, longer)
    return items[start : start + size + (index < longer)]


def _share(
    environment: DistributedEnvironment, topology: Topology, reasons: list[str], warnings: list[str]
) -> Sequence[tuple[int, ...]]:
    """This rank's physical cores, each as its CPU numbers."""
    cores, ranks = topology.cores, environment.local_world_size
    allowed = topology.allowed
    # torchrun binds nothing: what is bound then is the outer launcher's task, which its ranks share.
    by_launcher = topology.launcher_cpus if environment.launcher != TORCHRUN.name else None
    if by_launcher is not None and allowed < by_launcher:
        reasons.append(f"{environment.launcher} has bound this rank to {len(cores)} cores already")
        if ranks == 1:
            warnings.append(
                f"{environment.launcher} has bound the only rank of this node to {len(allowed)} of "
                f"{len(by_launcher)} CPUs: to use them all, tell it not to bind (mpirun --bind-to none)"
            )
        return cores
    if ranks == 1:
        reasons.append(f"the only rank of this node may use all of its {len(cores)} cores")
        return cores
    if len(allowed) < ranks:
        reasons.append(f"{ranks} ranks share {len(allowed)} CPUs")
        warnings.append(
            f"{ranks} ranks on this node, but only {len(allowed)} CPUs are allowed: they slow each other down; "
            "start fewer ranks or allow more CPUs"
        )
        return cores
    if len(cores) < ranks:
        cores = tuple((cpu,) for cpu in sorted(allowed))
        reasons.append(f"{ranks} ranks on fewer physical cores: each gets hardware threads")
    share = divide(cores, ranks, environment.local_rank)
    reasons.append(f"share {environment.local_rank} of {ranks}: {len(share)} of the {len(cores)} allowed cores")
    return share


def _threads(
    environment: DistributedEnvironment,
    cores: int,
    user_environ: Mapping[str, str],
    reasons: list[str],
    warnings: list[str],
) -> int | None:
    """OMP_NUM_THREADS, None where the user's own stays."""
    own = user_environ.get("OMP_NUM_THREADS", "")
    torchruns = (
        own == "1"
        and environment.launcher == TORCHRUN.name
        and environment.local_world_size > 1
        and user_environ.get("ROLE_NAME") != LAUNCH_ROLE
    )
    if own and not torchruns:
        if not re.fullmatch(r"[1-9]\d{0,4}(,[1-9]\d{0,4})*", own):
            raise UsageError(
                f"OMP_NUM_THREADS is {own!r}, expected a number of threads from 1 on: correct or unset it"
            )
        reasons.append(f"OMP_NUM_THREADS={own} is the user's own")
        if int(own.split(",")[0]) > cores:
            warnings.append(
                f"OMP_NUM_THREADS={own}, but this rank has {cores} cores: more threads than cores are slow"
            )
        return None
    if torchruns:
        reasons.append(
            "OMP_NUM_THREADS=1 is what torchrun sets by itself for several ranks on a node: replaced "
            "(to force 1, start the ranks with this stack's launch)"
        )
    reasons.append(f"OMP_NUM_THREADS={cores}: one thread for each of the rank's physical cores")
    return cores


def _intel_openmp(chosen: dict[str, str], user_environ: Mapping[str, str], reasons: list[str]) -> None:
    if "KMP_BLOCKTIME" in user_environ:
        reasons.append(f"KMP_BLOCKTIME={user_environ['KMP_BLOCKTIME']} is the user's own")
    else:
        chosen["KMP_BLOCKTIME"] = "1"
        reasons.append("KMP_BLOCKTIME=1: idle threads sleep after 1 ms and leave the cores to data loading")
    if "KMP_AFFINITY" in user_environ:
        reasons.append(f"KMP_AFFINITY={user_environ['KMP_AFFINITY']} is the user's own")
    else:
        reasons.append(
            "KMP_AFFINITY is left unset: the rank is bound as a whole; binding each thread would put every "
            "data loading process, which inherits the main thread's core, on that one core"
        )
