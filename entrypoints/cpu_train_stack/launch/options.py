"""The options of `launch`, with torchrun's own variables as defaults. Torch-free."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.options import (
    duration,
    integer,
    one_of,
    option,
    parse_options,
    ranks_of_a_node,
    remaining_command,
)
from cpu_train_stack.placement.detect import DEFAULT_MASTER_ADDR

DEFAULT_JOIN_SECONDS = 300.0
STATIC, C10D = "static", "c10d"
_ENDPOINT = re.compile(r"(\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<host>[^\s:\[\]]+))(:(?P<port>[^:]*))?")


_number_of_nodes = integer(1, 1_000_000, "a number of nodes")


def _nodes(text: str) -> int:
    """A number, or a range of one number, which Kubeflow writes."""
    low, _, high = text.partition(":")
    if high and high != low:
        raise argparse.ArgumentTypeError(f"{text} is a range, expected one number: the job cannot change its size")
    return _number_of_nodes(low)


def _ranks(text: str) -> int | None:
    return None if text == "auto" else ranks_of_a_node(text)


def _endpoint(text: str) -> tuple[str, int]:
    """HOST[:PORT], an IPv6 address in brackets."""
    match = _ENDPOINT.fullmatch(text)
    if not match:
        raise argparse.ArgumentTypeError(
            f"found {text!r}, expected HOST or HOST:PORT, with an IPv6 address in brackets ([fe80::1]:29500)"
        )
    port = integer(1, 65535, "a port")(match["port"]) if match["port"] else contract.MASTER_PORT
    return match["address"] or match["host"], port


@dataclass(frozen=True)
class Launch:
    """One node's part of a job. `parse` fills in `node_rank`, `master_addr` and `master_port`.

    `node_rank` None: assigned when the nodes meet (c10d). `master_port` 0: any free port (one node only).
    `nproc_per_node` None: computed from this node's cores, NUMA nodes and CPU quota.
    `run_id`: the same on all nodes of a job.
    """

    nnodes: int = option(
        "--nnodes", "number of nodes of the job (default: 1)", 1,
        variables=("PET_NNODES",), type=_nodes, metavar="N",
    )  # fmt: skip
    node_rank: int | None = option(
        "--node-rank", "this node's rank, from 0 to N-1",
        variables=("PET_NODE_RANK",), type=integer(0), metavar="I",
    )  # fmt: skip
    nproc_per_node: int | None = option(
        "--nproc-per-node", "ranks on this node (default: auto, one for each NUMA node, within the CPU quota)",
        variables=("PET_NPROC_PER_NODE",), type=_ranks, metavar="R|auto",
    )  # fmt: skip
    master_addr: str = option(
        "--master-addr", "node 0's name or address", "", variables=("PET_MASTER_ADDR",), metavar="HOST"
    )
    master_port: int = option(
        "--master-port", f"node 0's port (default: {contract.MASTER_PORT}; any free port for one node)",
        variables=("PET_MASTER_PORT",), type=integer(0, 65535, "a port"), metavar="PORT",
    )  # fmt: skip
    rdzv_backend: str = option(
        "--rdzv-backend", "how several nodes meet: static (the default; each node has a --node-rank) or c10d",
        STATIC, variables=("PET_RDZV_BACKEND",), type=one_of((STATIC, C10D)), metavar="static|c10d",
    )  # fmt: skip
    rdzv_endpoint: tuple[str, int] | None = option(
        "--rdzv-endpoint", "c10d: where the nodes meet, the name or address of one node",
        variables=("PET_RDZV_ENDPOINT",), type=_endpoint, metavar="HOST[:PORT]",
    )  # fmt: skip
    run_id: str = option(
        "--rdzv-id", "c10d: the job's name, if several jobs use one endpoint", "none",
        variables=("PET_RDZV_ID", "TORCHELASTIC_RUN_ID"), metavar="NAME",
    )  # fmt: skip
    max_restarts: int = option(
        "--max-restarts", "restart all ranks up to K times (default: 0)", 0,
        variables=("PET_MAX_RESTARTS",), type=integer(0), metavar="K",
    )  # fmt: skip
    timeout_seconds: float = duration("--timeout", "time limit for all nodes to join", DEFAULT_JOIN_SECONDS)
    command: tuple[str, ...] = remaining_command()

    @property
    def backend(self) -> str:
        """torchrun's name for how the nodes meet."""
        return C10D if self.node_rank is None else STATIC


def parse(argv: list[str], environ: Mapping[str, str]) -> Launch:
    """The options, with torchrun's own PET_* variables (Kubeflow sets them) as defaults. Raises UsageError."""
    launch = parse_options(
        Launch, argv, "launch",
        "Start several ranks on this node. torchrun's PET_* variables set the defaults of the options.",
        "[options] -- COMMAND ARGS...", environ,
    )  # fmt: skip
    node_rank, master_addr, master_port = _meeting(launch)
    return replace(
        launch,
        node_rank=node_rank,
        master_addr=master_addr,
        master_port=master_port,
        command=command_of("launch", launch.command),
    )


def command_of(program: str, arguments: tuple[str, ...]) -> tuple[str, ...]:
    """The command in `arguments`, without a leading `--`. Raises UsageError if there is no command."""
    command = arguments[1:] if arguments[:1] == ("--",) else arguments
    if not command:
        raise UsageError(
            f"{program}: no command, expected {program} [options] -- train ... (or run SCRIPT.py ...)"
        )
    return command


def _meeting(launch: Launch) -> tuple[int | None, str, int]:
    """This node's rank, and the host and port where the nodes meet. Raises UsageError."""
    several = launch.nnodes > 1
    if several and launch.rdzv_backend == C10D:
        if launch.rdzv_endpoint is None:
            raise UsageError(
                f"launch: {launch.nnodes} nodes with --rdzv-backend c10d, but --rdzv-endpoint is missing: "
                "set the same HOST:PORT on every node"
            )
        return (None, *launch.rdzv_endpoint)
    missing = ["--node-rank"] if launch.node_rank is None else []
    missing += [] if launch.master_addr else ["--master-addr"]
    if several and missing:
        raise UsageError(
            f"launch: {launch.nnodes} nodes, missing {' and '.join(missing)}: pass each node's own rank and "
            "node 0's name"
        )
    node_rank = launch.node_rank or 0
    if node_rank >= launch.nnodes:
        raise UsageError(f"launch: --node-rank is {node_rank}, expected an integer from 0 to {launch.nnodes - 1}")
    if several and launch.master_port == 0:  # each node would choose another port
        raise UsageError(
            f"launch: --master-port is 0, expected one port for all nodes, such as {contract.MASTER_PORT}"
        )
    any_port = contract.MASTER_PORT if several else 0
    port = any_port if launch.master_port is None else launch.master_port
    return node_rank, launch.master_addr or DEFAULT_MASTER_ADDR, port
