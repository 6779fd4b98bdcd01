"""The command lines of the image's launchers, for local clusters, bare-metal hosts and Kubernetes. Pure."""

from collections.abc import Iterable, Mapping, Sequence

# mpirun's nodes start at the same time as its launcher, within a second or two.
MPI_START_SECONDS = 60


def launch(
    command: Sequence[str],
    *,
    ranks_per_node: int | None,
    nodes: int | None = None,
    node_rank: int | None = None,
    master_addr: str | None = None,
    master_port: int | None = None,
    timeout: int | None = None,
) -> list[str]:
    """One node's `launch`, which runs torchrun's agent. `ranks_per_node` None: one rank for each NUMA node.

    Without `nodes` and the options after it, torchrun's PET_* variables say where the nodes meet.
    """
    options = {
        "nnodes": nodes,
        "node-rank": node_rank,
        "master-addr": master_addr,
        "master-port": master_port,
        "nproc-per-node": "auto" if ranks_per_node is None else ranks_per_node,
        "timeout": timeout,
    }
    return ["launch", *_flags(options), "--", *command]


def mpi_launch(
    command: Sequence[str],
    *,
    variables: Iterable[str],
    hosts: Sequence[str] | None = None,
    ranks_per_node: int | None = None,
    port: int | None = None,
    timeout: int | None = None,
) -> list[str]:
    """`mpi-launch`, which runs mpirun for all nodes. The ranks get only those `variables` of its environment.

    Without `hosts` and `ranks_per_node`, Intel MPI's variables name the nodes.
    """
    options = {
        "hosts": ",".join(hosts) if hosts else None,
        "ranks-per-node": ranks_per_node,
        "port": port,
        "timeout": timeout,
    }
    return ["mpi-launch", *_flags(options), *(f"--env={name}" for name in variables), "--", *command]


def _flags(options: Mapping[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in options.items() if value is not None]
