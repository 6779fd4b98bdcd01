"""`bench collectives`: latency and bandwidth of the process group's collectives, beside what limits them."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from entrypoints import contract
from entrypoints.bench import calls, report
from entrypoints.bench.cases import Case
from entrypoints.bench.ceilings import Ceilings, everyone
from entrypoints.bench.measure import Timing, measure
from entrypoints.bench.output import write
from entrypoints.group.backends import BACKENDS
from entrypoints.group.banner import Announce
from entrypoints.group.create import JOIN_SECONDS
from entrypoints.placement.detect import DistributedEnvironment


@dataclass(frozen=True)
class Collectives:
    """What was asked for. `backend`: of the default group, which the worker makes; `others` are made here."""

    cases: tuple[Case, ...]
    backend: str
    others: tuple[str, ...]
    row_seconds: float
    timeout_seconds: float
    as_json: bool
    output: Path | None

    def run(self, environment: DistributedEnvironment, _announce: Announce, /) -> int:
        """Measure; rank 0 prints the table or the document, or writes the file. A collective.

        What there is to announce is in the document.
        """
        torch.set_num_threads(1)  # threads that fill a tensor spin for a while beside the calls
        nodes_of_ranks = everyone(environment.node_rank)
        nodes = len(set(nodes_of_ranks))
        ceilings = Ceilings(environment, nodes_of_ranks)
        rows: list[dict[str, Any]] = []
        with self._groups(environment) as groups:
            for case in self.cases:
                call = calls.make(case, environment.world_size)
                ceilings.sample(call.bytes)
                timings = measure(call, groups, self.row_seconds)
                if environment.rank == 0:
                    say(f"{case}: {_in_words(timings, groups)}")
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
            self._tell(report.document(rows, ceilings.samples, nodes, facts()))
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

    def _tell(self, document: dict[str, Any]) -> None:
        if self.output is None:
            print(json.dumps(document, indent=2) if self.as_json else report.table(document), flush=True)
        else:
            write(document, self.output)


def say(line: str) -> None:
    """To standard error: standard output is the document's."""
    print(line, file=sys.stderr, flush=True)


def facts() -> dict[str, Any]:
    """What the figures depend on: processor, versions and the variables of the transports."""
    prefixes = ("CCL_", "FI_", "GLOO_")
    return {
        "pin": os.environ.get(contract.PIN, "unknown"),
        "torch": str(torch.__version__),
        "cpu": cpu(),
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith(prefixes)},
    }


def cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name."""
    found = re.search(r"^model name\s*:\s*(.*)$", cpuinfo.read_text(), flags=re.MULTILINE)
    return found[1] if found else "unknown"


def _in_words(timings: Mapping[str, Timing], asked: Iterable[str]) -> str:
    return ", ".join(
        f"{backend} {timings[backend].median * 1e6:.1f} us" if backend in timings else f"{backend} has it not"
        for backend in asked
    )
