"""`launch [options] -- COMMAND...`: the ranks of one node, started and watched by torchrun's agent.

    launch --nproc-per-node 2 -- train ...
    launch --nnodes 2 --node-rank 0 --master-addr node-0 --nproc-per-node 2 -- run script.py
    launch --nnodes 2 --rdzv-backend c10d --rdzv-endpoint node-0:29500 -- train ...

With c10d the nodes need no --node-rank, and meet again after a failure: a lost node may come back.

When a rank fails, the agent stops the other ranks of its node. This process prints one line with the rank and the
cause, and exits with that rank's code (128 + the signal's number if a signal killed it).
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from entrypoints.cli.errors import UsageError
from entrypoints.launch import agent_options, restarts
from entrypoints.launch.options import Launch, parse
from entrypoints.machine import network, processes, topology
from entrypoints.machine.cgroups import OutOfMemoryKills
from entrypoints.placement.detect import DEFAULT_MASTER_ADDR, DistributedEnvironment
from entrypoints.plan.planner import QUIET, ranks_for
from entrypoints.plan.threads import LAUNCH_ROLE
from entrypoints.rank import start
from entrypoints.rank.exit import how_it_ended

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

MONITOR_SECONDS = 0.5
# The ranks' time to end after SIGTERM. Below the 10 s that a container engine gives the whole container.
STOP_SECONDS = 5
# A store that does not answer for this long is lost.
STORE_SECONDS = 60


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
        wanted = os.environ.get(network.USERS_CHOICE, "")
        network.choose(node.master_addr, node.several_nodes, wanted, options.timeout_seconds)
    return _run_agent(options, node)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((DEFAULT_MASTER_ADDR, 0))
        return int(probe.getsockname()[1])


def _run_agent(options: Launch, node: DistributedEnvironment) -> int:
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", QUIET)  # read when torch is imported
    # A shared store would be that of the first meeting, and be lost with its node.
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.launcher import api

    from entrypoints.group.create import explain

    if "LOGLEVEL" not in os.environ:  # torchrun's switch for its agent's log
        for name, logger in logging.root.manager.loggerDict.items():
            if name.startswith("torch.distributed") and isinstance(logger, logging.Logger):
                logger.setLevel(logging.CRITICAL + 1)
    kills = OutOfMemoryKills()

    def describe_restart(failures: Mapping[int, ProcessFailure]) -> str:
        line = _describe(failures, options, kills)[1]
        kills.forget()
        return line

    # elastic_launch has no option for the agent's class.
    api.LocalElasticAgent = restarts.agent(api.LocalElasticAgent, describe_restart)
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
        first, *rest = start.python("entrypoints", list(options.command))
        processes.report_stopped_ranks(_node_name(options))
        try:
            api.elastic_launch(config, first)(*rest)
        except ChildFailedError as error:
            return _report(error.failures, options, kills)
        except SignalException as error:
            return 128 + int(error.sigval)
        except (RuntimeError, RendezvousError) as error:
            raise UsageError(explain(error, node, options.timeout_seconds)) from error
    return 0


def _meeting_of(options: Launch, node: DistributedEnvironment) -> dict[str, Any]:
    """torchrun's options for where and how the nodes meet."""
    seconds = max(1, round(options.timeout_seconds))
    where = {"rdzv_endpoint": f"{node.master_addr}:{node.master_port}"}
    if options.node_rank is not None:
        configs = {"rank": options.node_rank, "timeout": seconds}
        return {**where, "rdzv_configs": configs, "local_addr": node.master_addr if node.rank == 0 else None}
    found = network.route(node.master_addr, options.timeout_seconds)
    hosts = found.address == found.source
    # torchrun orders ranks by these names, and rank 0's is MASTER_ADDR. All nodes can resolve the endpoint's name.
    name = node.master_addr if hosts else socket.gethostname()
    if not hosts:
        network.wait_for_port(node.master_addr, node.master_port, options.timeout_seconds)
    configs = {"is_host": hosts, "join_timeout": seconds, "read_timeout": STORE_SECONDS}
    return {**where, "rdzv_configs": configs, "local_addr": name}


def _node_name(options: Launch) -> object:
    """This node's name in messages."""
    return socket.gethostname() if options.node_rank is None else options.node_rank


def _report(failures: Mapping[int, ProcessFailure], options: Launch, kills: OutOfMemoryKills) -> int:
    code, line = _describe(failures, options, kills)
    if not first_failure(failures)[1].error_file_data.get("printed"):
        print(line, file=sys.stderr, flush=True)
    return code


def _describe(failures: Mapping[int, ProcessFailure], options: Launch, kills: OutOfMemoryKills) -> tuple[int, str]:
    """The first failure's exit code, and a line with its rank and its cause."""
    global_rank, failure = first_failure(failures)
    out_of_memory = failure.exitcode == -signal.SIGKILL and kills.any_new()
    code, what = how_it_ended(failure.exitcode, out_of_memory)
    return code, f"rank {global_rank} (local {failure.local_rank}, node {_node_name(options)}) {what}"


def first_failure(failures: Mapping[int, ProcessFailure]) -> tuple[int, ProcessFailure]:
    """The failure that caused the others, with its global rank.

    A killed rank leaves no error file; its peers then lose the connection, fail within milliseconds and leave one.
    So a failure without a file counts as one monitoring interval and a second's rounding earlier.
    The agent's own SIGTERM comes last.
    """

    def order(item: tuple[int, ProcessFailure]) -> tuple[bool, float]:
        failure = item[1]
        file = Path(failure.error_file)
        when = file.stat().st_mtime if file.is_file() else failure.timestamp - MONITOR_SECONDS
        return failure.exitcode == -signal.SIGTERM, when

    return min(failures.items(), key=order)
