"""The launchers that can start a rank, and the names of their variables: one row each.

LAUNCHERS define a rank's complete placement. `unplaced` refuses processes started by any other launcher: as single
ranks, N processes would each train on all of the data and write to one folder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from cpu_train_stack.cli.numbers import whole_number
from cpu_train_stack.placement.slurm import in_step


@dataclass(frozen=True)
class Launcher:
    """The names of one launcher's variables. `marks`: any of these shows that the launcher started this process.

    `evenly`: the launcher's options for blocks of consecutive ranks, the same number on each node.
    `fix`: what to do about missing variables, other than setting or unsetting them.
    """

    name: str
    marks: tuple[str, ...]
    rank: str
    world_size: str
    local_rank: str
    local_world_size: str = ""  # empty: derived from `nodes`, every node must have the same number of ranks
    node_rank: str = ""  # empty: not set by the launcher, the ranks must be placed in blocks
    nodes: str = ""
    also: tuple[str, ...] = ()
    evenly: str = ""
    fix: str = ""

    @property
    def variables(self) -> tuple[str, ...]:
        names = (self.rank, self.world_size, self.local_rank, self.local_world_size, self.node_rank, self.nodes)
        return tuple(name for name in (*names, *self.also) if name)

    def started(self, environ: Mapping[str, str]) -> bool:
        if self.name == "Slurm" and not in_step(environ):
            return False
        return any(environ.get(mark) for mark in self.marks)

    def missing(self, environ: Mapping[str, str]) -> list[str]:
        return [name for name in self.variables if not environ.get(name)]

    def incomplete(self, environ: Mapping[str, str]) -> str:
        """The error message for missing variables."""
        found = [name for name in self.variables if environ.get(name)]
        found = found or [name for name in self.marks if environ.get(name)]
        values = " ".join(f"{name}={environ[name]}" for name in found)
        fix = "unset these variables to run a single rank, or set the missing ones"
        fix += f" ({self.fix})" if self.fix else ""
        return f"found {values}, but not {' '.join(self.missing(environ))} (launcher: {self.name}): {fix}"

    def uneven(self, placed: str) -> str:
        """The error message for ranks that are not in blocks. `placed`: this rank and its placement."""
        return (
            f"{self.name} placed {placed}, expected blocks of consecutive ranks with the same number on every "
            "node: start the same number of ranks on each node" + (f" ({self.evenly})" if self.evenly else "")
        )


_PLAIN_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
TORCHRUN = Launcher(
    "torchrun",
    ("TORCHELASTIC_RUN_ID",),
    *_PLAIN_NAMES,
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    ("MASTER_ADDR", "MASTER_PORT"),
)
OPEN_MPI = Launcher(
    "Open MPI",
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",  # OMPI_COMM_WORLD_NODE_RANK is the rank within the node, not the node's
    evenly="--map-by ppr:N:node",
)
MVAPICH2 = Launcher(
    "MVAPICH2",
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    "MV2_COMM_WORLD_RANK",
    "MV2_COMM_WORLD_SIZE",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "MV2_COMM_WORLD_LOCAL_SIZE",
)
# Intel MPI and MPICH. Slurm's pmi2 plug-in, Flux and PALS set PMI_RANK too, without MPI_LOCALRANKID: then the set
# is incomplete.
HYDRA = Launcher(
    "hydra",
    ("PMI_RANK", "MPI_LOCALRANKID"),
    "PMI_RANK",
    "PMI_SIZE",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    evenly="-ppn N",
)
# Cray's mpiexec. Only Cray's PMI sets the number of ranks; PMIx does not. Slurm's and Flux's plug-ins for Cray MPI
# set PALS_RANKID too, without PALS_LOCAL_RANKID.
PALS = Launcher(
    "PALS",
    ("PALS_RANKID", "PALS_LOCAL_RANKID"),
    "PALS_RANKID",
    "PMI_SIZE",
    "PALS_LOCAL_RANKID",
    "PALS_LOCAL_SIZE",
    also=("PMI_RANK",),
    evenly="--ppn N",
    fix="start the ranks with Cray's PMI (mpiexec without --pmi=pmix, PALS_PMI unset)",
)
FLUX = Launcher(
    "Flux",
    ("FLUX_TASK_RANK", "FLUX_TASK_LOCAL_ID"),
    "FLUX_TASK_RANK",
    "FLUX_JOB_SIZE",
    "FLUX_TASK_LOCAL_ID",
    nodes="FLUX_JOB_NNODES",
    evenly="--nodes N --tasks-per-node R --taskmap block",
)
# IBM's jsrun on LSF. Spectrum MPI also sets Open MPI's variables, to the same values.
JSM = Launcher(
    "jsrun",
    ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    "JSM_NAMESPACE_RANK",
    "JSM_NAMESPACE_SIZE",
    "JSM_NAMESPACE_LOCAL_RANK",
    "JSM_NAMESPACE_LOCAL_SIZE",
    evenly="--launch_distribution packed",
)
SLURM = Launcher(
    "Slurm",
    ("SLURM_STEP_ID",),
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_LOCALID",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_NODEID",
    also=("SLURM_STEP_NODELIST",),
)
PLAIN = Launcher(
    "environment", _PLAIN_NAMES, *_PLAIN_NAMES, fix="LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 for one rank per node"
)
LAUNCHERS = (TORCHRUN, OPEN_MPI, MVAPICH2, HYDRA, PALS, FLUX, JSM, SLURM, PLAIN)


@dataclass(frozen=True)
class LauncherMark:
    """A variable set by a launcher that does not define a rank's complete placement.

    `alone`: a regular expression for the values of a single process. `beside`: another variable that must be set
    too. `instead`: how to start the ranks.
    """

    launcher: str
    variable: str
    instead: str
    alone: str = ""
    beside: str = ""

    def left(self, environ: Mapping[str, str]) -> bool:
        value = environ.get(self.variable, "")
        beside = not self.beside or bool(environ.get(self.beside))
        return bool(value) and beside and not re.fullmatch(self.alone, value)


_MPIRUN_OR_PLAIN = "start with mpirun, or set RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE for each rank"
MARKS = (
    LauncherMark("prterun", "PMIX_RANK", "start with mpirun"),
    LauncherMark(
        "srun", "SLURM_PROCID", "keep its SLURM_STEP_* variables", alone="0"
    ),  # also set in a batch script
    LauncherMark("aprun", "ALPS_APP_PE", _MPIRUN_OR_PLAIN),
    LauncherMark("blaunch", "LSF_PM_TASKID", _MPIRUN_OR_PLAIN),
    # The job's script is task 1 on node 0. pbsdsh starts the other tasks; Torque numbers them per node.
    LauncherMark("pbsdsh", "PBS_TASKNUM", _MPIRUN_OR_PLAIN, alone="1"),
    LauncherMark("pbsdsh", "PBS_NODENUM", _MPIRUN_OR_PLAIN, alone="0"),
    LauncherMark("the operator", "PET_NNODES", "start with launch (launch -- train ...)", alone="(1:)?1"),
    # Without MPI, `accelerate launch --cpu` starts one process on each machine and does not set its rank. It sets
    # MASTER_ADDR only for several machines.
    LauncherMark(
        "accelerate launch",
        "MASTER_ADDR",
        "pass --mpirun_hostfile, or start with launch or mpirun",
        beside="ACCELERATE_MIXED_PRECISION",
    ),
)
# HOROVOD_RANK and HOROVOD_SIZE, or PMI_LOCAL_RANK. Variables without a number of ranks, such as LORA_RANK, are
# the user's own. The rank of a node or a role is not the rank of a process.
_RANK = re.compile(r"([A-Z][A-Z0-9_]*)_RANK(ID)?")
_NO_RANK = re.compile(r"(.*_)?(NODE|GROUP|ROLE|HOST|MACHINE)_RANK")
_SIZES = ("SIZE", "WORLD_SIZE", "NPROCS", "NRANKS", "NTASKS", "NUM_PROCS", "NUM_RANKS", "NUM_TASKS")
_PROCESS_RANK = re.compile(r"(.*_)?(LOCAL|GLOBAL|WORLD|PROC|PROCESS|MPI|MPIRUN|PMI[0-9X]*)_RANK(ID)?")


def unplaced(environ: Mapping[str, str]) -> str | None:
    """The error message for a process whose launcher does not define its placement; None without a launcher.

    For environments with no variable of LAUNCHERS.
    """
    for mark in MARKS:
        if mark.left(environ):
            return _unplaced(mark.launcher, mark.variable, environ, mark.instead)
    for name in sorted(environ):
        if _is_process_rank(name, environ):
            return _unplaced("its launcher", name, environ, _MPIRUN_OR_PLAIN)
    return None


def _is_process_rank(name: str, environ: Mapping[str, str]) -> bool:
    found, rank = _RANK.fullmatch(name), whole_number(environ[name])
    if found is None or rank is None or _NO_RANK.fullmatch(name):
        return False
    sizes = [whole_number(environ.get(f"{found[1]}_{suffix}", "")) for suffix in _SIZES]
    return bool(_PROCESS_RANK.fullmatch(name)) or any(size is not None and rank < size for size in sizes)


def _unplaced(launcher: str, variable: str, environ: Mapping[str, str], instead: str) -> str:
    return (
        f"found {variable}={environ[variable]}, but {launcher} does not set the number of ranks and their nodes: "
        f"{instead}, or unset {variable} to run a single rank"
    )
