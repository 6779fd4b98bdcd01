"""Every MPI launcher's recorded environment, and what detection returns for an environment."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.placement.detect import DistributedEnvironment, detect
from tests.unit.entrypoints import launcher_environments as recorded

ADDRESS = {"MASTER_ADDR": "node-0"}
MPI: dict[str, Callable[[int, int, int], dict[str, str]]] = {
    "Open MPI 4": recorded.open_mpi_4,
    "Open MPI 5": recorded.open_mpi_5,
    "MVAPICH2": recorded.mvapich2,
    "Intel MPI": recorded.intel_mpi,
    "MPICH": recorded.mpich,
    "PALS": recorded.pals,
    "Flux": recorded.flux,
    "jsrun": recorded.jsrun,
}
EVERY_MPI = pytest.mark.parametrize("launcher", MPI.values(), ids=MPI)


def refused(environ: dict[str, str]) -> str:
    """The one line with which detection refuses `environ`."""
    with pytest.raises(UsageError) as error:
        detect(environ)
    line = str(error.value)
    assert "\n" not in line
    return line


def place(found: DistributedEnvironment) -> tuple[int, int, int, int, int]:
    return found.rank, found.world_size, found.local_rank, found.local_world_size, found.node_rank
