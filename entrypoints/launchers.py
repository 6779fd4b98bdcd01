"""The launchers that can start a rank, and the names of their variables: one row each.

LAUNCHERS tell the whole place of a rank. What else leaves a mark on the processes that it starts is refused
(`unplaced`): taken for single ranks, N processes would each train on everything and write to one folder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from entrypoints.digits import whole_number
from entrypoints.slurm import in_step


@dataclass(frozen=True)
class Launcher:
    """The names of one launcher's variables, and the variables that say that it started this process.

    `evenly`: its options for blocks of consecutive ranks, as many on each node. `mend`: what to do where its set
    is incomplete, beyond setting or unsetting the variables.
    """

    name: str
    marks: tuple[str, ...]
    rank: str
    world_size: str
    local_rank: str
    local_world_size: str = ""  # empty: it names only the nodes, each must have the same number of ranks
    node_rank: str = ""  # empty: it names none, the ranks must be placed in blocks
    nodes: str = ""
    also: tuple[str, ...] = ()
    evenly: str = ""
    mend: str = ""

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
        """The line for a set of which variables are missing."""
        found = [name for name in self.variables if environ.get(name)]
        found = found or [name for name in self.marks if environ.get(name)]
        values = " ".join(f"{name}={environ[name]}" for name in found)
        mend = "unset these variables to run a single rank, or set the missing ones"
        mend += f" ({self.mend})" if self.mend else ""
        return f"found {values}, but {' '.join(self.missing(environ))} of {self.name}'s set is missing: {mend}"

    def uneven(self, placed: str) -> str:
        """The line for ranks that are not in blocks; `placed`: this rank, and where."""
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
# Cray's mpiexec. It tells the number of ranks only in the variables of Cray's PMI, none of them with PMIx. Slurm's
# and Flux's plug-ins for Cray MPI set PALS_RANKID too, without PALS_LOCAL_RANKID.
PALS = Launcher(
    "PALS",
    ("PALS_RANKID", "PALS_LOCAL_RANKID"),
    "PALS_RANKID",
    "PMI_SIZE",
    "PALS_LOCAL_RANKID",
    "PALS_LOCAL_SIZE",
    also=("PMI_RANK",),
    evenly="--ppn N",
    mend="start them with Cray's PMI (mpiexec without --pmi=pmix, PALS_PMI unset)",
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
# IBM's jsrun on LSF. With Spectrum MPI, Open MPI's set is beside it and says the same.
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
    "environment", _PLAIN_NAMES, *_PLAIN_NAMES, mend="one rank a node is LOCAL_RANK=0 LOCAL_WORLD_SIZE=1"
)
LAUNCHERS = (TORCHRUN, OPEN_MPI, MVAPICH2, HYDRA, PALS, FLUX, JSM, SLURM, PLAIN)


@dataclass(frozen=True)
class Mark:
    """A variable that a launcher leaves on its processes without telling their whole place.

    `alone`: the values with which there is one process, a regular expression. `beside`: another variable that has
    to be set too. `instead`: how to start the ranks.
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


_OWN = "start with mpirun, or set RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE for each"
MARKS = (
    Mark("prterun", "PMIX_RANK", "start with mpirun"),
    Mark("srun", "SLURM_PROCID", "keep its SLURM_STEP_* variables", alone="0"),  # a batch script has it too
    Mark("aprun", "ALPS_APP_PE", _OWN),
    Mark("blaunch", "LSF_PM_TASKID", _OWN),
    # A job's script is task 1 on node 0; pbsdsh's are others, numbered for each node by themselves (Torque).
    Mark("pbsdsh", "PBS_TASKNUM", _OWN, alone="1"),
    Mark("pbsdsh", "PBS_NODENUM", _OWN, alone="0"),
    Mark("the operator", "PET_NNODES", "start with launch (launch -- train ...)", alone="(1:)?1"),
    # Without MPI, `accelerate launch --cpu` starts one process on each machine and says nothing about the others;
    # it sets the address only for several.
    Mark(
        "accelerate launch",
        "MASTER_ADDR",
        "give it --mpirun_hostfile, or start with launch or mpirun",
        beside="ACCELERATE_MIXED_PRECISION",
    ),
)
# HOROVOD_RANK and what else has a rank in its name; not that of a node or of a role, which users set too.
_RANK = re.compile(r"[A-Z][A-Z0-9_]*_RANK(ID)?")
_NO_RANK = re.compile(r"(.*_)?(NODE|GROUP|ROLE|HOST|MACHINE)_RANK")


def unplaced(environ: Mapping[str, str]) -> str | None:
    """The line for a process that a launcher has started without telling its place; None where there is no mark.

    For environments in which none of LAUNCHERS has left its set.
    """
    for mark in MARKS:
        if mark.left(environ):
            return _unplaced(mark.launcher, mark.variable, environ, mark.instead)
    for name in sorted(environ):
        if _RANK.fullmatch(name) and not _NO_RANK.fullmatch(name) and whole_number(environ[name]) is not None:
            return _unplaced("what set it", name, environ, _OWN)
    return None


def _unplaced(launcher: str, variable: str, environ: Mapping[str, str], instead: str) -> str:
    return (
        f"found {variable}={environ[variable]}, but {launcher} does not say how many ranks there are and where: "
        f"{instead}, or unset {variable} to run a single rank"
    )
