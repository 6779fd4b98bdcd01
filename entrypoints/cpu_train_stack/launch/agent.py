"""`launch [options] -- COMMAND...`: the ranks of one node, started and watched by torchrun's agent.

    launch --nproc-per-node 2 -- train ...
    launch --nnodes 2 --node-rank 0 --master-addr node-0 --nproc-per-node 2 -- run script.py
    launch --nnodes 2 --rdzv-backend c10d --rdzv-endpoint node-0:29500 -- train ...

With c10d, the nodes need no --node-rank, and meet again after a failure: a lost node may rejoin.

When a rank fails, the agent stops the other ranks of its node. This process prints one line with the rank and the
cause, and exits with that rank's code (128 + the signal's number if a signal killed it).
"""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import socket
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import MeetingError
from cpu_train_stack.cli.interpreter import python_command
from cpu_train_stack.cli.say import say
from cpu_train_stack.launch.elastic_agent import FailedElsewhereError, Failures, agent_class
from cpu_train_stack.launch.failures import (
    Failure,
    failed_rank,
    first_failure,
    for_records,
    keep_hangup_ignored,
    report,
    report_signal,
)
from cpu_train_stack.launch.options import Launch, parse
from cpu_train_stack.machine import network, processes, topology
from cpu_train_stack.machine.cgroups import OutOfMemoryKills
from cpu_train_stack.machine.last_checkpoint import LastCheckpoint
from cpu_train_stack.placement.detect import DEFAULT_MASTER_ADDR, DistributedEnvironment
from cpu_train_stack.plan.planner import QUIET, ranks_for
from cpu_train_stack.plan.threads import LAUNCH_ROLE
from cpu_train_stack.records.writer import Failed
from cpu_train_stack.report import at_end

if TYPE_CHECKING:
    from torch.distributed.launcher.api import LaunchConfig

MONITOR_SECONDS = 0.5
# The ranks' time to exit after SIGTERM: below the 10 s that a container engine gives the container.
STOP_SECONDS = 5
# A store that does not respond for this long is lost.
STORE_SECONDS = 60
# Fields of LaunchConfig that older pins do not have. Without shutdown_timeout (after 2.8), the ranks have 30 s.
_NEWER_FIELDS = ("local_addr", "shutdown_timeout")


def main(argv: list[str]) -> int:
    options = parse(argv, os.environ)
    node = DistributedEnvironment(  # the nodes as ranks, one each: the agents' own rendezvous
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
    # A shared store would be the store of the first rendezvous, and be lost with its node.
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    allowed = os.sched_getaffinity(0)
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.elastic.utils import store
    from torch.distributed.launcher import api

    from cpu_train_stack.group.create import explain

    # With OMP_PLACES or OMP_PROC_BIND, torch's libgomp binds this thread to one core. The ranks would inherit it.
    if os.sched_getaffinity(0) != allowed:
        os.sched_setaffinity(0, allowed)
    if "LOGLEVEL" not in os.environ:  # torchrun's variable for its agent's log
        for name, logger in logging.root.manager.loggerDict.items():
            if name.startswith("torch.distributed") and isinstance(logger, logging.Logger):
                logger.setLevel(logging.CRITICAL + 1)
    keep_hangup_ignored()
    kills = OutOfMemoryKills()

    def describe_restart(failures: Failures) -> str:
        found = rank_failures(failures, _node_name(options), kills)
        recorded.record(for_records(found), and_report=False)  # the restart does not wait for a page
        kills.forget()
        return first_failure(found).text

    # On torch 2.0 and older, the agents wait for each other in this function, by default for 300 s. Node 0 has
    # waited for their connections before, with the same limit.
    store.synchronize.__defaults__ = (options.timeout_seconds,)
    # elastic_launch has no option for the agent's class.
    base_agent = api.LocalElasticAgent
    with tempfile.TemporaryDirectory(prefix="launch-") as folder:
        recorded = at_end.Failures(Path(folder))
        os.environ[contract.DRAIN] = folder
        api.LocalElasticAgent = agent_class(
            base_agent,
            describe_restart,
            lambda failures: first_failure(rank_failures(failures, _node_name(options), kills)).exit_code,
            LastCheckpoint(Path(folder), os.environ),
            options.timeout_seconds,
            can_join_again=options.node_rank is None,
        )
        config = _config(
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
            **_rendezvous(options, node),
        )
        # torchrun replaces macros such as $local_rank in the arguments. Two dollar signs stand for one.
        command = [word.replace("$", "$$") for word in options.command]
        first, *rest = python_command("cpu_train_stack", command)
        processes.report_stopped_ranks(_node_name(options))
        try:
            api.elastic_launch(config, first)(*rest)
        except ChildFailedError as error:
            found = rank_failures(error.failures, _node_name(options), kills)
            recorded.record(for_records(found))
            return report(found)
        except FailedElsewhereError as error:
            say(str(error))
            return error.exit_code
        except SignalException as error:
            recorded.record([Failed(0, signal.Signals(error.sigval).name, time.time(), "stop")])
            return report_signal(error.sigval)
        except (RuntimeError, TimeoutError, RendezvousError) as error:  # TimeoutError: torch 2.0 and older
            raise MeetingError(explain(error, node, options.timeout_seconds)) from error
    return 0


def _config(log_folder: str, **options: Any) -> LaunchConfig:
    """torchrun's LaunchConfig; its fields differ between versions of torch. `log_folder`: for the error files."""
    from torch.distributed.elastic import multiprocessing
    from torch.distributed.launcher.api import LaunchConfig

    fields = {field.name for field in dataclasses.fields(LaunchConfig)}
    known = {name: value for name, value in options.items() if name in fields or name not in _NEWER_FIELDS}
    if "logs_specs" in fields:  # since 2.3
        return LaunchConfig(logs_specs=multiprocessing.DefaultLogsSpecs(log_dir=log_folder), **known)
    return LaunchConfig(log_dir=log_folder, **known)


def _rendezvous(options: Launch, node: DistributedEnvironment) -> dict[str, Any]:
    """torchrun's options for where and how the nodes meet."""
    seconds = max(1, round(options.timeout_seconds))
    where = {"rdzv_endpoint": f"{node.master_addr}:{node.master_port}"}
    if options.node_rank is not None:
        configs = {"rank": options.node_rank, "timeout": seconds}
        return {**where, "rdzv_configs": configs, "local_addr": node.master_addr if node.rank == 0 else None}
    hosts = network.is_own(network.resolve(node.master_addr, options.timeout_seconds))
    # torchrun orders ranks by these names, and rank 0's is MASTER_ADDR. All nodes can resolve the endpoint's name.
    name = node.master_addr if hosts else socket.gethostname()
    if not hosts:
        network.wait_for_port(node.master_addr, node.master_port, options.timeout_seconds)
    configs = {"is_host": hosts, "join_timeout": seconds, "read_timeout": STORE_SECONDS}
    return {**where, "rdzv_configs": configs, "local_addr": name}


def _node_name(options: Launch) -> object:
    """This node's name in messages."""
    return socket.gethostname() if options.node_rank is None else options.node_rank


def rank_failures(failures: Failures, node: object, kills: OutOfMemoryKills) -> list[Failure]:
    """The agent's failures, by global rank, as Failure. `node`: its name in messages.

    A killed rank leaves no error file; its peers then lose the connection, fail within milliseconds and leave one.
    So a failure without a file, whose timestamp is a rounded-down second, gets a head start of one monitoring
    interval.
    """
    found = []
    for rank, failure in failures.items():
        file = Path(failure.error_file)
        found.append(
            failed_rank(
                rank,
                failure.local_rank,
                node,
                failure.exitcode,
                out_of_memory=failure.exitcode == -signal.SIGKILL and kills.any_new(),
                at=file.stat().st_mtime if file.is_file() else failure.timestamp,
                head_start=0.0 if file.is_file() else MONITOR_SECONDS,
                printed=bool(failure.error_file_data.get("printed")),
            )
        )
    return found
