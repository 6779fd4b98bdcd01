"""Environments as the launchers set them, complete with what else they leave: what the detection is tested on.

Recorded: Intel MPI 2021.18, MPICH 4.0 and 4.2, Open MPI 4.1 and 5.0, PRRTE 3.0, srun (with each of its MPI
plug-ins, on one node and on two) and sbatch of Slurm 22.05, Flux 0.88, torchrun 2.13, accelerate 1.15 and this
stack's launch; environments/ has one file for each and its README the commands. The functions that take a rank put
it, and the sizes, into a recording.

From documentation, never recorded: MVAPICH2 (the names are in its source), PALS (in its pals.h), jsrun (in
programs that read them, PyTorch Lightning among them), Kubeflow's training operator, and `plain`, which is
a user's own script.
"""

from __future__ import annotations

from pathlib import Path

SHELL = {"HOME": "/home/trainer", "PATH": "/opt/venv/bin:/usr/bin", "LANG": "C.UTF-8", "HOSTNAME": "node-0"}
RECORDINGS = Path(__file__).with_name("environments")


def recording(name: str) -> dict[str, str]:
    """environments/`name`.env, in a shell's environment."""
    lines = (RECORDINGS / f"{name}.env").read_text().splitlines()
    return {**SHELL, **dict(line.split("=", 1) for line in lines)}


def torchrun(rank: int, world_size: int, local_world_size: int, master_addr: str = "node-0") -> dict[str, str]:
    return {
        **recording("torchrun-2.13"),
        "RANK": str(rank),
        "GROUP_RANK": str(rank // local_world_size),
        "ROLE_RANK": str(rank),
        "LOCAL_RANK": str(rank % local_world_size),
        "LOCAL_WORLD_SIZE": str(local_world_size),
        "WORLD_SIZE": str(world_size),
        "GROUP_WORLD_SIZE": str(world_size // local_world_size),
        "ROLE_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": master_addr,
    }


def _open_mpi(name: str, rank: int, world_size: int, local_world_size: int) -> dict[str, str]:
    local_rank = rank % local_world_size
    return {
        **recording(name),
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(world_size),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(local_rank),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(local_world_size),
        "OMPI_COMM_WORLD_NODE_RANK": str(local_rank),
        "PMIX_RANK": str(rank),
    }


def open_mpi_4(rank: int, world_size: int, local_world_size: int) -> dict[str, str]:
    return _open_mpi("open-mpi-4.1", rank, world_size, local_world_size)


def open_mpi_5(rank: int, world_size: int, local_world_size: int) -> dict[str, str]:
    return _open_mpi("open-mpi-5.0", rank, world_size, local_world_size)


def mvapich2(rank: int, world_size: int, local_world_size: int) -> dict[str, str]:
    return {
        **SHELL,
        "MV2_COMM_WORLD_RANK": str(rank),
        "MV2_COMM_WORLD_SIZE": str(world_size),
        "MV2_COMM_WORLD_LOCAL_RANK": str(rank % local_world_size),
        "MV2_COMM_WORLD_LOCAL_SIZE": str(local_world_size),
        "MPIRUN_RANK": str(rank),
        "MPIRUN_NPROCS": str(world_size),
        "MPISPAWN_ID": str(rank // local_world_size),
        "PMI_PORT": "node-0:34567",
        "PMI_ID": str(rank),
    }


def _hydra(name: str, rank: int, world_size: int, local_world_size: int) -> dict[str, str]:
    return {
        **recording(name),
        "PMI_RANK": str(rank),
        "PMI_SIZE": str(world_size),
        "MPI_LOCALRANKID": str(rank % local_world_size),
        "MPI_LOCALNRANKS": str(local_world_size),
    }


def intel_mpi(rank: int, world_size: int, local_world_size: int) -> dict[str, str]:
    return _hydra("intel-mpi-2021.18", rank, world_size, local_world_size)


def mpich(rank: int, world_size: int, local_world_size: int) -> dict[str, str]:
    return _hydra("mpich-4.2", rank, world_size, local_world_size)


def pals(rank: int, world_size: int, local_world_size: int) -> dict[str, str]:
    """Cray's mpiexec with Cray's PMI."""
    local_rank = str(rank % local_world_size)
    return {
        **pals_with_pmix(rank, local_world_size),
        "PMI_RANK": str(rank),
        "PMI_SIZE": str(world_size),
        "PMI_LOCAL_RANK": local_rank,
        "PMI_LOCAL_SIZE": str(local_world_size),
        "PMI_UNIVERSE_SIZE": str(world_size),
    }


def pals_with_pmix(rank: int, local_world_size: int) -> dict[str, str]:
    """mpiexec --pmi=pmix, Aurora's default: no variable has the number of ranks. Without PMIx's variables."""
    return {
        **SHELL,
        "PALS_APID": "6b6a3c1e-0000-0000-0000-000000000000",
        "PALS_DEPTH": "1",
        "PALS_LOCAL_RANKID": str(rank % local_world_size),
        "PALS_LOCAL_SIZE": str(local_world_size),
        "PALS_NODEID": str(rank // local_world_size),
        "PALS_RANKID": str(rank),
    }


def jsrun(rank: int, world_size: int, local_world_size: int) -> dict[str, str]:
    return {
        **SHELL,
        "LSB_JOBID": "1234",
        "JSM_NAMESPACE_RANK": str(rank),
        "JSM_NAMESPACE_SIZE": str(world_size),
        "JSM_NAMESPACE_LOCAL_RANK": str(rank % local_world_size),
        "JSM_NAMESPACE_LOCAL_SIZE": str(local_world_size),
        "PMIX_RANK": str(rank),
    }


def flux(rank: int, world_size: int, local_world_size: int) -> dict[str, str]:
    return {
        **recording("flux-0.88"),
        "FLUX_TASK_RANK": str(rank),
        "FLUX_TASK_LOCAL_ID": str(rank % local_world_size),
        "FLUX_JOB_SIZE": str(world_size),
        "FLUX_JOB_NNODES": str(world_size // local_world_size),
        "PMI_RANK": str(rank),
        "PMI_SIZE": str(world_size),
    }


def _allotted(nodes: int) -> dict[str, str]:
    nodelist = f"node[01-{nodes:02d}]"
    count = str(nodes)
    return {
        "SLURM_JOB_NODELIST": nodelist,
        "SLURM_NODELIST": nodelist,
        "SLURM_JOB_NUM_NODES": count,
        "SLURM_NNODES": count,
    }


def srun(rank: int, tasks_per_node: str, counts: list[int], nodelist: str) -> dict[str, str]:
    """A step's rank in block distribution; `counts` is what `tasks_per_node` means."""
    node = next(index for index in range(len(counts)) if rank < sum(counts[: index + 1]))
    total = str(sum(counts))
    return {
        **recording("srun-22.05"),
        **_allotted(len(counts)),
        "SLURM_STEP_NODELIST": nodelist,
        "SLURM_STEP_NUM_NODES": str(len(counts)),
        "SLURM_STEP_NUM_TASKS": total,
        "SLURM_STEP_TASKS_PER_NODE": tasks_per_node,
        "SLURM_NTASKS": total,
        "SLURM_NPROCS": total,
        "SLURM_TASKS_PER_NODE": tasks_per_node,
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank - sum(counts[:node])),
        "SLURM_NODEID": str(node),
    }


def plain(rank: int, world_size: int, local_rank: int, local_world_size: int) -> dict[str, str]:
    return {
        **SHELL,
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_world_size),
    }


def pytorchjob_with_master(pod: int, pods: int) -> dict[str, str]:
    """What Kubeflow's training operator v1 gives a pod: no LOCAL_*, and torchrun's options as PET_*."""
    return {
        **SHELL,
        "PYTHONUNBUFFERED": "1",
        "MASTER_ADDR": "job-master-0",
        "MASTER_PORT": "23456",
        "WORLD_SIZE": str(pods),
        "RANK": str(pod),
        "PET_NPROC_PER_NODE": "auto",
        "PET_NNODES": str(pods),
        "PET_NODE_RANK": str(pod),
        "PET_MASTER_ADDR": "job-master-0",
        "PET_MASTER_PORT": "23456",
        "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    }
