"""The launchers that can start a rank, and the names of their variables: one row each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from entrypoints.slurm import in_step


@dataclass(frozen=True)
class Launcher:
    """The names of one launcher's variables, and the variables that say that it started this process."""

    name: str
    marks: tuple[str, ...]
    rank: str
    world_size: str
    local_rank: str
    local_world_size: str
    node_rank: str = ""  # empty: it names none, the ranks must be placed in blocks
    nodes: str = ""
    also: tuple[str, ...] = ()

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
)
MVAPICH2 = Launcher(
    "MVAPICH2",
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    "MV2_COMM_WORLD_RANK",
    "MV2_COMM_WORLD_SIZE",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "MV2_COMM_WORLD_LOCAL_SIZE",
)
# Intel MPI and MPICH. srun's pmi2 plug-in sets PMI_RANK too, without MPI_LOCALRANKID: then the set is incomplete.
HYDRA = Launcher(
    "hydra", ("PMI_RANK", "MPI_LOCALRANKID"), "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"
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
PLAIN = Launcher("environment", _PLAIN_NAMES, *_PLAIN_NAMES)
LAUNCHERS = (TORCHRUN, OPEN_MPI, MVAPICH2, HYDRA, SLURM, PLAIN)
