"""`launch [options] -- COMMAND...`: the ranks of one node, started and watched by torchrun's agent.

    launch --nproc-per-node 2 -- train ...
    launch --nnodes 2 --node-rank 0 --master-addr node-0 --nproc-per-node 2 -- run script.py
    launch --nnodes 2 --rdzv-backend c10d --rdzv-endpoint node-0:29500 -- train ...

With c10d the nodes meet without numbers of their own, and again after a failure: a lost node may come back.

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
from typing import TYPE_CHECKING, Any

from entrypoints import agent_options, memory_events, network, processes, rank, restarts, topology
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
STATIC, C10D = "static", "c10d"
# A store that does not answer for so long is lost.
STORE_SECONDS = 60
_PET = (
    "NNODES",
    "NODE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "MAX_RESTARTS",
    "RDZV_BACKEND",
    "RDZV_ENDPOINT",
    "RDZV_ID",
)


@dataclass(frozen=True)
class Launch:
    """One node's part of a job. `master_port` 0: any free port (one node only).

    `nproc_per_node` None: as many as this node's cores, NUMA nodes and CPU quota are good for.
    `node_rank` None: the meeting decides (c10d), `run_id` is what the nodes of one job have in common.
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
        "Start several ranks on this node. Options left out are taken from torchrun's PET_* variables.",
        "launch [options] -- COMMAND ARGS...",
    )
    pet = {name: environ.get(f"PET_{name}") for name in _PET}
    add = parser.add_argument
    add("--nnodes", default=pet["NNODES"] or "1", metavar="N", help="nodes of the job (default: 1)")
    add("--node-rank", default=pet["NODE_RANK"], metavar="I", help="this node's index, from 0")
    add("--nproc-per-node", default=environ.get("PET_NPROC_PER_NODE", "auto"), metavar="R|auto",
        help="ranks on this node (auto, the default: one for each NUMA node, within the CPU quota)")  # fmt: skip
    add("--master-addr", default=pet["MASTER_ADDR"], metavar="HOST", help="node 0's name or address")
    add("--master-port", default=pet["MASTER_PORT"], metavar="PORT",
        help=f"where the nodes meet (default: {DEFAULT_MASTER_PORT}; any free port for one node)")  # fmt: skip
    add("--rdzv-backend", default=pet["RDZV_BACKEND"] or STATIC, metavar="static|c10d",
        help="how several nodes meet: each with its --node-rank, or by themselves (default: static)")  # fmt: skip
    add("--rdzv-endpoint", default=pet["RDZV_ENDPOINT"], metavar="HOST[:PORT]",
        help="c10d: where they meet, a name or address of one of them")  # fmt: skip
    add("--rdzv-id", default=pet["RDZV_ID"] or environ.get("TORCHELASTIC_RUN_ID", "none"), metavar="NAME",
        help="c10d: the job's name, where several meet at one endpoint")  # fmt: skip
    add("--max-restarts", default=pet["MAX_RESTARTS"] or "0", metavar="K",
        help="restart all ranks so many times (default: 0)")  # fmt: skip
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
    per_node = options.nproc_per_node
    node_rank, master_addr, master_port = _meeting(options, nnodes)
    return Launch(
        nnodes=nnodes,
        node_rank=node_rank,
        nproc_per_node=None if per_node == "auto" else _number("--nproc-per-node", per_node, 1),
        master_addr=master_addr,
        master_port=master_port,
        max_restarts=_number("--max-restarts", options.max_restarts, 0),
        timeout_seconds=options.timeout,
        command=tuple(command),
        run_id=options.rdzv_id,
    )


def _meeting(options: argparse.Namespace, nnodes: int) -> tuple[int | None, str, int]:
    """This node's index, and where the nodes meet: host and port. Raises UsageError."""
    if options.rdzv_backend not in (STATIC, C10D):
        raise UsageError(f"launch: --rdzv-backend is {options.rdzv_backend!r}, expected {STATIC} or {C10D}")
    if nnodes == 1:
        number = _number("--node-rank", options.node_rank or "0", 0, 0)
        port = _number("--master-port", options.master_port or "0", 0, 65535)
        return number, options.master_addr or DEFAULT_MASTER_ADDR, port
    if options.rdzv_backend == C10D:
        host, port = _endpoint(options.rdzv_endpoint or "")
        if not host:
            raise UsageError(
                f"launch: {nnodes} nodes meet by c10d, but --rdzv-endpoint is missing: give all the same HOST:PORT"
            )
        return None, host, port
    missing = [name for name in ("node_rank", "master_addr") if not getattr(options, name)]
    if missing:
        flags = " ".join("--" + name.replace("_", "-") for name in missing)
        raise UsageError(
            f"launch: {nnodes} nodes, but {flags} is missing: give each node its index and node 0's name"
        )
    number = _number("--node-rank", options.node_rank, 0, nnodes - 1)
    port = _number("--master-port", options.master_port or str(DEFAULT_MASTER_PORT), 0, 65535)
    return number, options.master_addr, port


def _endpoint(text: str) -> tuple[str, int]:
    """HOST[:PORT], an IPv6 address in brackets."""
    host, port = text, ""
    if ":" in text and not text.endswith("]"):
        host, _, port = text.rpartition(":")
    return host.strip("[]"), _number("--rdzv-endpoint's port", port or str(DEFAULT_MASTER_PORT), 1, 65535)


def _number(flag: str, text: str, low: int, high: int | None = None) -> int:
    if not text.isdigit() or int(text) < low or (high is not None and int(text) > high):
        expected = f"an integer from {low}" + ("" if high is None else f" to {high}")
        raise UsageError(f"launch: {flag} is {text!r}, expected {expected}")
    return int(text)


def main(argv: list[str]) -> int:
    options = parse(argv, os.environ)
    node = DistributedEnvironment(  # the nodes as ranks, one each: what the agents' own meeting is
        rank=options.node_rank or 0,
        world_size=options.nnodes,
        node_rank=options.node_rank or 0,
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
    # After a failure the ranks of c10d's nodes would meet in one store under different numbers of restarts: nodes
    # that only join again do not count theirs. Without sharing, each meeting has a store of its own.
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.launcher.api import elastic_launch

    from entrypoints.distributed import explain

    if "LOGLEVEL" not in os.environ:  # torchrun's own switch: its agent's lines are for who asks
        for name, logger in logging.root.manager.loggerDict.items():
            if name.startswith("torch.distributed") and isinstance(logger, logging.Logger):
                logger.setLevel(logging.CRITICAL + 1)
    if options.max_restarts:
        restarts.tell(_node_name(options), options.max_restarts)
    os.environ[restarts.AGENTS_MEETING] = options.backend
    with tempfile.TemporaryDirectory(prefix="launch-") as folder:
        config = agent_options.config(
            folder,
            min_nodes=options.nnodes,
            max_nodes=options.nnodes,
            nproc_per_node=options.nproc_per_node or ranks_for(topology.read()),
            run_id=options.run_id if options.nnodes > 1 else uuid.uuid4().hex,
            role=LAUNCH_ROLE,
            rdzv_backend=options.backend,
            max_restarts=options.max_restarts,
            monitor_interval=MONITOR_SECONDS,
            shutdown_timeout=STOP_SECONDS,
            **_meeting_of(options, node),
        )
        first, *rest = rank.python("entrypoints", list(options.command))
        processes.tell_of_stopped_ranks(_node_name(options))
        try:
            elastic_launch(config, first)(*rest)
        except ChildFailedError as error:
            return _report(error.failures, options)
        except SignalException as error:
            return 128 + int(error.sigval)
        except (RuntimeError, RendezvousError) as error:
            raise UsageError(explain(error, node, options.timeout_seconds)) from error
    return 0


def _meeting_of(options: Launch, node: DistributedEnvironment) -> dict[str, Any]:
    """torchrun's own terms for where and how the nodes meet."""
    seconds = max(1, round(options.timeout_seconds))
    where = {"rdzv_endpoint": f"{node.master_addr}:{node.master_port}"}
    if options.node_rank is not None:
        configs = {"rank": options.node_rank, "timeout": seconds}
        return {**where, "rdzv_configs": configs, "local_addr": node.master_addr if node.rank == 0 else None}
    found = network.route(node.master_addr, options.timeout_seconds)
    hosts = found.address == found.source
    # Ranks go by the order of these names, and rank 0's is MASTER_ADDR: the endpoint's own all nodes can resolve.
    name = node.master_addr if hosts else socket.gethostname()
    if not hosts:
        network.wait_for_port(node.master_addr, node.master_port, options.timeout_seconds)
    configs = {"is_host": hosts, "join_timeout": seconds, "read_timeout": STORE_SECONDS}
    return {**where, "rdzv_configs": configs, "local_addr": name}


def _node_name(options: Launch) -> object:
    """What messages call this node."""
    return socket.gethostname() if options.node_rank is None else options.node_rank


def _report(failures: Mapping[int, ProcessFailure], options: Launch) -> int:
    global_rank, failure = first_failure(failures)
    out_of_memory = failure.exitcode == -signal.SIGKILL and memory_events.out_of_memory_kills() > 0
    code, what = how_it_ended(failure.exitcode, out_of_memory)
    if not failure.error_file_data.get("told"):
        place = f"local {failure.local_rank}, node {_node_name(options)}"
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
