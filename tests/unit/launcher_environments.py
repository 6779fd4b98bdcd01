"""Environments as the launchers set them, complete with what else they leave: what the detection is tested on.

Each function returns one rank's variables. The names are from runs of Intel MPI 2021.18, MPICH 4, Open MPI 4
and 5, srun 22.05 and torchrun 2.13, and from MVAPICH2's source.
"""

from __future__ import annotations

SHELL = {"HOME": "/home/trainer", "PATH": "/opt/venv/bin:/usr/bin", "LANG": "C.UTF-8", "HOSTNAME": "node-0"}


def torchrun(rank: int, world_size: int, local_world_size: int, master_addr: str = "node-0") -> dict[str, str]:
    local_rank = rank % local_world_size
    return {
        **SHELL,
        "RANK": str(rank),
        "GROUP_RANK": str(rank // local_world_size),
        "ROLE_RANK": str(rank),
        "ROLE_NAME": "default",
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_world_size),
        "WORLD_SIZE": str(world_size),
        "GROUP_WORLD_SIZE": str(world_size // local_world_size),
        "ROLE_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": master_addr,
        "MASTER_PORT": "29400",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": f"/tmp/torchelastic_x/none_y/attempt_0/{local_rank}/error.json",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "OMP_NUM_THREADS": "1",
    }


def open_mpi_4(rank: int, world_size: int, local_world_size: int) -> dict[str, str]:
    local_rank = rank % local_world_size
    return {
        **SHELL,
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(world_size),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(local_rank),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(local_world_size),
        "OMPI_COMM_WORLD_NODE_RANK": str(local_rank),
        "OMPI_UNIVERSE_SIZE": str(world_size),
        "OMPI_APP_CTX_NUM_PROCS": str(world_size),
        "OMPI_FIRST_RANKS": "0",
        "OMPI_NUM_APP_CTX": "1",
        "OMPI_COMMAND": "entrypoint",
        "OMPI_MCA_ess": "^singleton",
        "OMPI_MCA_orte_ess_num_procs": str(world_size),
        "OMPI_MCA_ess_base_vpid": str(rank),
        "PMIX_NAMESPACE": "1234567",
        "PMIX_RANK": str(rank),
        "PMIX_SERVER_URI2": "pmix-server.99;tcp4://127.0.0.1:40000",
    }


def open_mpi_5(rank: int, world_size: int, local_world_size: int) -> dict[str, str]:
    four = open_mpi_4(rank, world_size, local_world_size)
    kept = {name: value for name, value in four.items() if not name.startswith("OMPI_MCA_")}
    return {
        **kept,
        "PMIX_VERSION": "5.0.1",
        "PRTE_LAUNCHED": "1",
        "PMIX_SERVER_URI41": "prterun-node-0-77@0.0;tcp4://127.0.0.1:5",
    }


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


def intel_mpi(rank: int, world_size: int, local_world_size: int) -> dict[str, str]:
    return {
        **SHELL,
        "PMI_RANK": str(rank),
        "PMI_SIZE": str(world_size),
        "PMI_FD": "9",
        "MPI_LOCALRANKID": str(rank % local_world_size),
        "MPI_LOCALNRANKS": str(local_world_size),
        "I_MPI_ROOT": "/opt/venv",
        "I_MPI_MPIRUN": "mpirun",
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_JOB_RESPECT_PROCESS_PLACEMENT": "off",
        "MPIR_CVAR_CH3_INTERFACE_HOSTNAME": "node-0",
        "HYDI_CONTROL_FD": "8",
    }


def mpich(rank: int, world_size: int, local_world_size: int) -> dict[str, str]:
    names = ("PMI_RANK", "PMI_SIZE", "PMI_FD", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    intel = intel_mpi(rank, world_size, local_world_size)
    return {**SHELL, **{name: intel[name] for name in names}, "GFORTRAN_UNBUFFERED_PRECONNECTED": "y"}


def sbatch(tasks: int, nodes: int) -> dict[str, str]:
    """The batch script's own environment: an allocation, and no step that srun started."""
    return {
        **SHELL,
        "SLURM_JOB_ID": "4242",
        "SLURM_JOBID": "4242",
        "SLURM_JOB_NODELIST": f"node[01-{nodes:02d}]",
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_NNODES": str(nodes),
        "SLURM_NTASKS": str(tasks),
        "SLURM_NPROCS": str(tasks),
        "SLURM_TASKS_PER_NODE": f"{tasks // nodes}(x{nodes})",
        "SLURM_NODEID": "0",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_TASK_PID": "777",
        "SLURM_CLUSTER_NAME": "linux",
        "SLURM_JOB_PARTITION": "cpu",
    }


def srun(rank: int, tasks_per_node: str, counts: list[int], nodelist: str) -> dict[str, str]:
    """A step's rank in block distribution; `counts` is what `tasks_per_node` means."""
    node = next(index for index in range(len(counts)) if rank < sum(counts[: index + 1]))
    total = str(sum(counts))
    return {
        **sbatch(sum(counts), len(counts)),
        "SLURM_STEP_ID": "0",
        "SLURM_STEPID": "0",
        "SLURM_STEP_NODELIST": nodelist,
        "SLURM_STEP_NUM_NODES": str(len(counts)),
        "SLURM_STEP_NUM_TASKS": total,
        "SLURM_STEP_TASKS_PER_NODE": tasks_per_node,
        "SLURM_NTASKS": total,
        "SLURM_TASKS_PER_NODE": tasks_per_node,
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank - sum(counts[:node])),
        "SLURM_NODEID": str(node),
        "SLURM_SRUN_COMM_HOST": "10.0.0.1",
        "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1",
        "SLURM_CPU_BIND": "quiet,mask_cpu:0x3",
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
