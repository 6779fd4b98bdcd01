"""What ran and where: versions, command, plan, checks, configuration. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from cpu_train_stack.cli.numbers import count
from cpu_train_stack.machine.cpus import format_cpu_list
from cpu_train_stack.page import topology
from cpu_train_stack.page.blocks import Block, Command, Facts, Table, Texts
from cpu_train_stack.page.texts import NOTHING
from cpu_train_stack.page.texts import ranks as named
from cpu_train_stack.page.topology import NodePicture
from cpu_train_stack.records.job import Rank, RecordedJob
from cpu_train_stack.records.record import Start
from cpu_train_stack.report import ranks


def what_ran(job: RecordedJob) -> list[Block]:
    start = job.first.start
    found: list[Block] = [Facts([(name, value) for name, value in facts(job).items() if value != NOTHING])]
    if start.command:
        found.append(Command("Command", command(start)))
    return [*found, *topology.drawings(_nodes(job)), ranks.places(job)]


def facts(job: RecordedJob) -> dict[str, str]:
    """What differs between jobs: software, machine, ranks."""
    start = job.first.start
    found = {
        "pin": start.pin,
        "launcher": start.launcher,
        "process group": start.backend,
        "ranks": f"{job.world_size} on {count(job.nodes, 'node')}",
        "CPU": start.cpu_model,
        "instructions for bf16": start.bf16,
        "CPUs of a rank": str(len(start.cores)) if start.cores else "",
        "threads of a rank": str(start.threads or ""),
        "rows per step": f"{start.rows_per_step:,} of all ranks" if start.rows_per_step else "",
        "versions": ", ".join(f"{name} {version}" for name, version in start.versions.items()),
        "image": start.image,
    }
    return {name: value or NOTHING for name, value in found.items()}


def command(start: Start) -> str:
    """As typed in a shell in the image."""
    return shlex.join(["entrypoint", *start.command])


def plan(job: RecordedJob) -> list[Block]:
    """The reasons of the plan, its warnings, and what doctor found."""
    first = job.first.start
    reasons = [str(one) for one in first.plan.get("reasons") or ()]
    warnings: dict[str, list[int]] = {}
    for number, rank in sorted(job.ranks.items()):
        for warning in rank.start.plan.get("warnings") or ():
            warnings.setdefault(str(warning), []).append(number)
    found: list[Block] = []
    if warnings:
        texts = [f"{text} ({_who(job, who)})" for text, who in warnings.items()]
        found.append(Texts("Warnings of the plan", texts, "warning"))
    if rows := _checks(job):
        found.append(Table("Warnings of doctor", ["check", "status", "details", "fix", "node"], rows))
    if reasons:
        title = "Reasons of the plan" + (f", for rank {first.rank}" if job.world_size > 1 else "")
        found.append(Texts(title, reasons))
    return found


def configuration(job: RecordedJob) -> list[Block]:
    """Every setting of the trainer."""
    rows = [[name, value(one)] for name, one in sorted(job.first.start.config.items())]
    return [Table(f"All {len(rows)} settings", ["setting", "value"], rows, folded=True)] if rows else []


def missing(job: RecordedJob) -> str:
    """A sentence about the ranks without a file; empty if there are none."""
    if not job.missing:
        return ""
    many = len(job.missing) > 1
    return (
        f"{count(len(job.missing), 'rank')} of {job.world_size} {'are' if many else 'is'} missing on this page "
        f"({named(job.missing)}): {'their nodes do' if many else 'its node does'} not share the output folder. To "
        "include them, copy the _records folder of each node into this one, and run `entrypoint report` again."
    )


def value(one: Any) -> str:
    """A setting as text."""
    if isinstance(one, str):
        return one
    return json.dumps(one, ensure_ascii=False, sort_keys=True, default=str)


def _nodes(job: RecordedJob) -> list[NodePicture]:
    """The nodes whose topology is recorded."""
    found = []
    by_node: dict[int, list[int]] = {}
    for number, rank in sorted(job.ranks.items()):
        by_node.setdefault(rank.start.node_rank, []).append(number)
    for node, numbers in sorted(by_node.items()):
        starts = [job.ranks[number].start for number in numbers]
        known = next((start.topology for start in starts if start.topology.get("cores")), None)
        if known is None:
            continue
        users = {cpu: start.local_rank for start in starts for cpu in start.cores}
        workers = {cpu: start.local_rank for start in starts for cpu in start.plan.get("ccl_worker_cores") or ()}
        ranks = {start.local_rank: start.rank for start in starts}  # srun may place them in any order
        found.append(NodePicture(f"Node {node} ({starts[0].host})", known, ranks, users, workers))
    return found


def _who(job: RecordedJob, who: list[int]) -> str:
    return "all ranks" if len(who) == len(job.ranks) > 1 else named(who)


def _checks(job: RecordedJob) -> list[list[str]]:
    """The same finding on several nodes is one row."""
    found: dict[tuple[str, ...], list[Rank]] = {}
    for _, rank in sorted(job.ranks.items()):
        for check in rank.start.checks:
            row = tuple(str(check.get(name, "")) for name in ("name", "status", "detail", "fix"))
            found.setdefault(row, []).append(rank)
    return [[*row, format_cpu_list({one.start.node_rank for one in who})] for row, who in found.items()]


def settings(job: RecordedJob) -> Mapping[str, str]:
    """The configuration as texts, to compare."""
    return {name: value(one) for name, one in job.first.start.config.items()}
