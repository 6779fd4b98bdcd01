"""`bench collectives`: latency and bandwidth of the process group's collectives, beside the hardware's limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from cpu_train_stack.bench import report
from cpu_train_stack.bench.arguments import Collectives
from cpu_train_stack.bench.cases import chosen
from cpu_train_stack.bench.ceilings import Ceilings
from cpu_train_stack.bench.measure import Timing, make_call, measure
from cpu_train_stack.bench.output import facts, publish
from cpu_train_stack.cli.say import say
from cpu_train_stack.group.backends import BACKENDS
from cpu_train_stack.group.create import JOIN_SECONDS, gather
from cpu_train_stack.placement.detect import DistributedEnvironment


def run(options: Collectives, environment: DistributedEnvironment) -> int:
    """Measure. Rank 0 prints the table or the document, or writes the file. A collective."""
    torch.set_num_threads(1)  # threads that fill a tensor spin for a while beside the calls
    nodes_of_ranks = gather(environment.node_rank)
    nodes = len(set(nodes_of_ranks))
    ceilings = Ceilings(environment, nodes_of_ranks)
    rows: list[dict[str, Any]] = []
    with _groups(options, environment) as groups:
        for case in chosen(options.collectives, options.dtypes, options.sizes):
            call = make_call(case, environment.world_size)
            ceilings.sample(call.bytes)
            timings = measure(call, groups, options.seconds)
            if environment.rank == 0:
                say(f"{case}: {_medians(timings, groups)}")
            for name, timing in timings.items():
                row = report.row(
                    case,
                    call.bytes,
                    str(dist.get_backend(groups[name])),
                    environment.world_size,
                    nodes,
                    (timing.low, timing.median, timing.high),
                )
                rows.append({**row, "nodes": nodes, "calls": timing.calls, "repetitions": timing.blocks})
    ceilings.close()
    if environment.rank == 0:
        document = report.document(rows, ceilings.samples, nodes, facts())
        publish(document, options.output, None if options.as_json else report.table(document))
    return 0


@contextmanager
def _groups(options: Collectives, environment: DistributedEnvironment) -> Iterator[dict[str, dist.ProcessGroup]]:
    """A group for each backend: the default group for the first, which the worker has created."""
    first, *others = options.backends
    groups = {first: dist.group.WORLD}
    for name in others:
        BACKENDS[name](environment, JOIN_SECONDS)
        groups[name] = dist.new_group(backend=name, timeout=timedelta(seconds=options.timeout_seconds))
    yield groups
    for name in others:
        dist.destroy_process_group(groups[name])


def _medians(timings: Mapping[str, Timing], backends: Iterable[str]) -> str:
    return ", ".join(
        f"{backend} {timings[backend].median * 1e6:.1f} us" if backend in timings else f"{backend} not supported"
        for backend in backends
    )
