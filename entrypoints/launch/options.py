"""The options of `launch`, with torchrun's own variables as defaults. Torch-free."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass

from entrypoints import contract
from entrypoints.cli.errors import UsageError
from entrypoints.cli.numbers import whole_number
from entrypoints.cli.options import Parser, positive_seconds
from entrypoints.placement.detect import DEFAULT_MASTER_ADDR

DEFAULT_JOIN_SECONDS = 300.0
STATIC, C10D = "static", "c10d"
_ENDPOINT = re.compile(r"(\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<host>[^\s:\[\]]+))(:(?P<port>[^:]*))?")


@dataclass(frozen=True)
class Launch:
    """One node's part of a job. `master_port` 0: any free port (one node only).

    `nproc_per_node` None: computed from this node's cores, NUMA nodes and CPU quota.
    `node_rank` None: assigned when the nodes meet (c10d). `run_id`: the same on all nodes of a job.
    """

    nnodes: int
    node_rank: int | None
    nproc_per_node: int | None
    master_addr: str
    master_port: int
    max_restarts: int
    timeout_seconds: float
    command: tuple[str, ...]
    run_id: str = "none"

    @property
    def backend(self) -> str:
        """torchrun's name for how the nodes meet."""
        return C10D if self.node_rank is None else STATIC


def parse(argv: list[str], environ: Mapping[str, str]) -> Launch:
    """The options, with torchrun's own PET_* variables (Kubeflow sets them) as defaults. Raises UsageError."""
    parser = Parser(
        "launch",
        "Start several ranks on this node. torchrun's PET_* variables set the defaults of the options.",
        "launch [options] -- COMMAND ARGS...",
    )

    def pet(name: str) -> str | None:
        return environ.get(f"PET_{name}")

    add = parser.add_argument
    add("--nnodes", default=pet("NNODES") or "1", metavar="N", help="number of nodes of the job (default: 1)")
    add("--node-rank", default=pet("NODE_RANK"), metavar="I", help="this node's rank, from 0 to N-1")
    add("--nproc-per-node", default=environ.get("PET_NPROC_PER_NODE", "auto"), metavar="R|auto",
        help="ranks on this node (default: auto, one for each NUMA node, within the CPU quota)")  # fmt: skip
    add("--master-addr", default=pet("MASTER_ADDR"), metavar="HOST", help="node 0's name or address")
    add("--master-port", default=pet("MASTER_PORT"), metavar="PORT",
        help=f"node 0's port (default: {contract.MASTER_PORT}; any free port for one node)")  # fmt: skip
    add("--rdzv-backend", default=pet("RDZV_BACKEND") or STATIC, metavar="static|c10d",
        help="how several nodes meet: static (the default; each node has a --node-rank) or c10d")  # fmt: skip
    add("--rdzv-endpoint", default=pet("RDZV_ENDPOINT"), metavar="HOST[:PORT]",
        help="c10d: where the nodes meet, the name or address of one node")  # fmt: skip
    add("--rdzv-id", default=pet("RDZV_ID") or environ.get("TORCHELASTIC_RUN_ID", "none"), metavar="NAME",
        help="c10d: the job's name, if several jobs use one endpoint")  # fmt: skip
    add("--max-restarts", default=pet("MAX_RESTARTS") or "0", metavar="K",
        help="restart all ranks up to K times (default: 0)")  # fmt: skip
    add("--timeout", type=positive_seconds, default=DEFAULT_JOIN_SECONDS, metavar="SECONDS",
        help="time limit for all nodes to join (default: %(default)g)")  # fmt: skip
    add("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="train ..., run SCRIPT.py ... or bench ...")
    options = parser.parse_args(argv)
    command = command_of("launch", options.command)
    low, _, high = options.nnodes.partition(":")
    if high and high != low:
        raise UsageError(
            f"launch: --nnodes {options.nnodes} is a range, expected one number: the job cannot change its size"
        )
    nnodes = _number("--nnodes", low, 1)
    per_node = options.nproc_per_node
    node_rank, master_addr, master_port = _rendezvous(options, nnodes)
    return Launch(
        nnodes=nnodes,
        node_rank=node_rank,
        nproc_per_node=None if per_node == "auto" else _number("--nproc-per-node", per_node, 1),
        master_addr=master_addr,
        master_port=master_port,
        max_restarts=_number("--max-restarts", options.max_restarts, 0),
        timeout_seconds=options.timeout,
        command=command,
        run_id=options.rdzv_id,
    )


def command_of(program: str, arguments: list[str]) -> tuple[str, ...]:
    """The command in `arguments`, without a leading `--`. Raises UsageError if there is no command."""
    command = tuple(arguments[1:] if arguments[:1] == ["--"] else arguments)
    if not command:
        raise UsageError(
            f"{program}: no command, expected {program} [options] -- train ... (or run SCRIPT.py ...)"
        )
    return command


def _rendezvous(options: argparse.Namespace, nnodes: int) -> tuple[int | None, str, int]:
    """This node's rank, and the host and port where the nodes meet. Raises UsageError."""
    if options.rdzv_backend not in (STATIC, C10D):
        raise UsageError(f"launch: --rdzv-backend is {options.rdzv_backend!r}, expected {STATIC} or {C10D}")
    if nnodes == 1:
        number = _number("--node-rank", options.node_rank or "0", 0, 0)
        port = _number("--master-port", options.master_port or "0", 0, 65535)
        return number, options.master_addr or DEFAULT_MASTER_ADDR, port
    if options.rdzv_backend == C10D:
        if not options.rdzv_endpoint:
            raise UsageError(
                f"launch: {nnodes} nodes with --rdzv-backend c10d, but --rdzv-endpoint is missing: "
                "set the same HOST:PORT on every node"
            )
        return (None, *_endpoint(options.rdzv_endpoint))
    missing = [name for name in ("node_rank", "master_addr") if not getattr(options, name)]
    if missing:
        flags = " ".join("--" + name.replace("_", "-") for name in missing)
        raise UsageError(
            f"launch: {nnodes} nodes, but {flags} is missing: set each node's own rank and node 0's name"
        )
    number = _number("--node-rank", options.node_rank, 0, nnodes - 1)
    port = _number("--master-port", options.master_port or str(contract.MASTER_PORT), 0, 65535)
    return number, options.master_addr, port


def _endpoint(text: str) -> tuple[str, int]:
    """HOST[:PORT], an IPv6 address in brackets. Raises UsageError."""
    match = _ENDPOINT.fullmatch(text)
    if not match:
        raise UsageError(
            f"launch: --rdzv-endpoint is {text!r}, expected HOST or HOST:PORT, "
            "with an IPv6 address in brackets ([fe80::1]:29500)"
        )
    port = _number("--rdzv-endpoint's port", match["port"] or str(contract.MASTER_PORT), 1, 65535)
    return match["address"] or match["host"], port


def _number(flag: str, text: str, low: int, high: int | None = None) -> int:
    value = whole_number(text)
    if value is None or value < low or (high is not None and value > high):
        expected = f"an integer from {low}" + ("" if high is None else f" to {high}")
        raise UsageError(f"launch: {flag} is {text!r}, expected {expected}")
    return value
