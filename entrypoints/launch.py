"""`launch [options] -- COMMAND...`: the ranks of one node, started and watched by torchrun's agent.

    launch --nproc-per-node 2 -- train ...
    launch --nnodes 2 --node-rank 0 --master-addr node-0 --nproc-per-node 2 -- run script.py

When a rank fails, the agent stops the others of its node; this process says in one line which rank it was and
of what, and exits with that rank's code (128 + the signal's number where a signal killed it).
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from entrypoints import memory_events, network, processes, rank, topology
from entrypoints.affinity import LAUNCH_ROLE, QUIET, ranks_for
from entrypoints.environment import DEFAULT_MASTER_ADDR, DEFAULT_MASTER_PORT, DistributedEnvironment
from entrypoints.errors import UsageError
from entrypoints.failure import how_it_ended
from entrypoints.options import Parser, positive_seconds

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

MONITOR_SECONDS = 0.5
# The ranks' time to end after SIGTERM. Below the 10 s that a container engine gives the whole container.
STOP_SECONDS = 5
DEFAULT_JOIN_SECONDS = 300.0


@dataclass(frozen=True)
class Launch:
    """One node's part of a job. `master_port` 0: any free port (one node only).

    `nproc_per_node` None: as many as this node's cores, NUMA nodes and CPU quota are good for.
    """

    nnodes: int
    node_rank: int
    nproc_per_node: int | None
    master_addr: str
    master_port: int
    max_restarts: int
    timeout_seconds: float
    command: tuple[str, ...]


def parse(argv: list[str], environ: Mapping[str, str]) -> Launch:
    """The options, with torchrun's own PET_* variables (Kubeflow sets them) as defaults. Raises UsageError."""
    parser = Parser(
        "launch",
        "Start several ranks on this node. Options left out are taken from torchrun's PET_* variables.",
        "launch [options] -- COMMAND ARGS...",
    )
    pet = {name: environ.get(f"PET_{name}") for name in ("NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")}
    add = parser.add_argument
    add("--nnodes", default=pet["NNODES"] or "1", metavar="N", help="nodes of the job (default: 1)")
    add("--node-rank", default=pet["NODE_RANK"], metavar="I", help="this node's index, from 0")
    add("--nproc-per-node", default=environ.get("PET_NPROC_PER_NODE", "auto"), metavar="R|auto",
        help="ranks on this node (auto, the default: one for each NUMA node, within the CPU quota)")  # fmt: skip
    add("--master-addr", default=pet["MASTER_ADDR"], metavar="HOST", help="node 0's name or address")
    add("--master-port", default=pet["MASTER_PORT"], metavar="PORT",
        help=f"where the nodes meet (default: {DEFAULT_MASTER_PORT}; any free port for one node)")  # fmt: skip
    add("--max-restarts", default="0", metavar="K", help="restart all ranks so many times (default: 0)")
    add("--timeout", type=positive_seconds, default=DEFAULT_JOIN_SECONDS, metavar="SECONDS",
        help="for all nodes to come (default: %(default)g)")  # fmt: skip
    add("command", nargs=argparse.REMAINDER, metavar="COMMAND")
    options = parser.parse_args(argv)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        raise UsageError("launch: no command, expected launch [options] -- train ... (or run SCRIPT.py ...)")
    low, _, high = options.nnodes.partition(":")
    if high and high != low:
        raise UsageError(
            f"launch: --nnodes {options.nnodes} is a range, expected one number: the job is not elastic"
        )
    nnodes = _number("--nnodes", low, 1)
    several = nnodes > 1
    if several and not (options.node_rank and options.master_addr):
        missing = [name for name in ("node_rank", "master_addr") if not getattr(options, name)]
        flags = " ".join("--" + name.replace("_", "-") for name in missing)
        raise UsageError(
            f"launch: {nnodes} nodes, but {flags} is missing: give each node its index and node 0's name"
        )
    per_node = options.nproc_per_node
    return Launch(
        nnodes=nnodes,
        node_rank=_number("--node-rank", options.node_rank or "0", 0, nnodes - 1),
        nproc_per_node=None if per_node == "auto" else _number("--nproc-per-node", per_node, 1),
        master_addr=options.master_addr or DEFAULT_MASTER_ADDR,
        master_port=_number(
            "--master-port", options.master_port or str(DEFAULT_MASTER_PORT if several else 0), 0, 65535
        ),
        max_restarts=_number("--max-restarts", options.max_restarts, 0),
        timeout_seconds=options.timeout,
        command=tuple(command),
    )


def _number(flag: str, text: str, low: int, high: int | None = None) -> int:
    if not text.isdigit() or int(text) < low or (high is not None and int(text) > high):
        expected = f"an integer from {low}" + ("" if high is None else f" to {high}")
        raise UsageError(f"launch: {flag} is {text!r}, expected {expected}")
    return int(text)


def main(argv: list[str]) -> int:
    options = parse(argv, os.environ)
    node = DistributedEnvironment(  # the nodes as ranks, one each: what the agents' own meeting is
        rank=options.node_rank,
        world_size=options.nnodes,
        node_rank=options.node_rank,
        master_addr=options.master_addr,
        master_port=options.master_port or _free_port(),
        launcher="launch",
    )
    if node.several_nodes:
        network.choose(node, os.environ.get("GLOO_SOCKET_IFNAME", ""), options.timeout_seconds)
    return _run_agent(options, node)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((DEFAULT_MASTER_ADDR, 0))
        return int(probe.getsockname()[1])


def _run_agent(options: Launch, node: DistributedEnvironment) -> int:
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", QUIET)  # read when torch is imported
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from entrypoints.distributed import explain

    if "LOGLEVEL" not in os.environ:  # torchrun's own switch: its agent's lines are for who asks
        for name, logger in logging.root.manager.loggerDict.items():
            if name.startswith("torch.distributed") and isinstance(logger, logging.Logger):
                logger.setLevel(logging.CRITICAL + 1)
    with tempfile.TemporaryDirectory(prefix="launch-") as folder:
        config = LaunchConfig(
            min_nodes=options.nnodes,
            max_nodes=options.nnodes,
            nproc_per_node=options.nproc_per_node or ranks_for(topology.read()),
            run_id=os.environ.get("TORCHELASTIC_RUN_ID", "none") if options.nnodes > 1 else uuid.uuid4().hex,
            role=LAUNCH_ROLE,
            rdzv_backend="static",
            rdzv_endpoint=f"{node.master_addr}:{node.master_port}",
            rdzv_configs={"rank": options.node_rank, "timeout": max(1, round(options.timeout_seconds))},
            max_restarts=options.max_restarts,
            monitor_interval=MONITOR_SECONDS,
            shutdown_timeout=STOP_SECONDS,
            local_addr=node.master_addr if options.node_rank == 0 else None,
            logs_specs=DefaultLogsSpecs(log_dir=folder),
        )
        first, *rest = rank.python("entrypoints", list(options.command))
        processes.tell_of_stopped_ranks(options.node_rank)
        try:
            elastic_launch(config, first)(*rest)
        except ChildFailedError as error:
            return _report(error.failures, options)
        except SignalException as error:
            return 128 + int(error.sigval)
        except RuntimeError as error:
            raise UsageError(explain(error, node, options.timeout_seconds)) from error
    return 0


def _report(failures: Mapping[int, ProcessFailure], options: Launch) -> int:
    global_rank, failure = first_failure(failures)
    out_of_memory = failure.exitcode == -signal.SIGKILL and memory_events.out_of_memory_kills() > 0
    code, what = how_it_ended(failure.exitcode, out_of_memory)
    if not failure.error_file_data.get("told"):
        place = f"local {failure.local_rank}, node {options.node_rank}"
        print(f"rank {global_rank} ({place}) {what}", file=sys.stderr, flush=True)
    return code


def first_failure(failures: Mapping[int, ProcessFailure]) -> tuple[int, ProcessFailure]:
    """The failure that caused the others, with its global rank.

    A rank that was killed leaves no file; its peers then fail of a lost connection within milliseconds and
    leave one. So a failure without a file counts as one monitoring interval and a second's rounding earlier.
    The agent's own SIGTERM comes last.
    """

    def order(item: tuple[int, ProcessFailure]) -> tuple[bool, float]:
        failure = item[1]
        file = Path(failure.error_file)
        when = file.stat().st_mtime if file.is_file() else failure.timestamp - MONITOR_SECONDS
        return failure.exitcode == -signal.SIGTERM, when

    return min(failures.items(), key=order)
