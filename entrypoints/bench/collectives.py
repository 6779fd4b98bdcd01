"""`bench collectives`: latency and bandwidth of the process group's collectives, beside the hardware's limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from entrypoints.bench import report
from entrypoints.bench.cases import Case
from entrypoints.bench.ceilings import Ceilings
from entrypoints.bench.measure import Timing, make_call, measure
from entrypoints.bench.output import facts, print_progress, publish
from entrypoints.group.backends import BACKENDS
from entrypoints.group.banner import Announce
from entrypoints.group.create import JOIN_SECONDS, gather
from entrypoints.placement.detect import DistributedEnvironment


@dataclass(frozen=True)
class Collectives:
    """The command line. `backend`: of the default group, which the worker creates. `others`: created here."""

    cases: tuple[Case, ...]
    backend: str
    others: tuple[str, ...]
    row_seconds: float
    timeout_seconds: float
    as_json: bool
    output: Path | None

    def run(self, environment: DistributedEnvironment, _announce: Announce, /) -> int:
        """Measure. Rank 0 prints the table or the document, or writes the file. A collective.

        The document has the facts that other commands announce.
        """
        torch.set_num_threads(1)  # threads that fill a tensor spin for a while beside the calls
        nodes_of_ranks = gather(environment.node_rank)
        nodes = len(set(nodes_of_ranks))
        ceilings = Ceilings(environment, nodes_of_ranks)
        rows: list[dict[str, Any]] = []
        with self._groups(environment) as groups:
            for case in self.cases:
                call = make_call(case, environment.world_size)
                ceilings.sample(call.bytes)
                timings = measure(call, groups, self.row_seconds)
                if environment.rank == 0:
                    print_progress(f"{case}: {_medians(timings, groups)}")
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
            publish(document, self.output, None if self.as_json else report.table(document))
        return 0

    @contextmanager
    def _groups(self, environment: DistributedEnvironment) -> Iterator[dict[str, dist.ProcessGroup]]:
        groups = {self.backend: dist.group.WORLD}
        for name in self.others:
            BACKENDS[name](environment, JOIN_SECONDS)
            groups[name] = dist.new_group(backend=name, timeout=timedelta(seconds=self.timeout_seconds))
        yield groups
        for name in self.others:
            dist.destroy_process_group(groups[name])


def _medians(timings: Mapping[str, Timing], backends: Iterable[str]) -> str:
    return ", ".join(
        f"{backend} {timings[backend].median * 1e6:.1f} us" if backend in timings else f"{backend} not supported"
        for backend in backends
    )
