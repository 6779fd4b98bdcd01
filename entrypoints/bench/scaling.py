"""`bench scaling`: one training step on 1, 2, 4, ... nodes, in turn in the same processes.

The nodes that have no part in a phase sleep. Every rank has the same batch in every phase: of a job's samples
twice the nodes do twice as many in a step, as in strong scaling with a fixed batch per device.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import torch.distributed as dist

from entrypoints.bench import collectives
from entrypoints.bench.ceilings import everyone
from entrypoints.bench.matching import StepTime, powers_of_two
from entrypoints.bench.output import write
from entrypoints.bench.phases import (
    BUCKETS,
    SMALL_BYTES,
    Found,
    Phase,
    Trainer,
    all_reduces,
    documents,
    timed,
)
from entrypoints.cli.errors import UsageError
from entrypoints.group.backends import BACKENDS
from entrypoints.group.banner import Announce
from entrypoints.group.create import JOIN_SECONDS
from entrypoints.placement.detect import DistributedEnvironment

# Of a block, at most: long against a period of a CPU quota.
BLOCK_SECONDS = 1.0
FEWEST_ROUNDS = 3
# Two batches, from which a step's constant part and that of a sample are told apart.
_TRIAL_BATCHES = (4, 12)
_UNMATCHED_BATCH = 8


@dataclass(frozen=True)
class Scaling:
    """What was asked for. `nodes`: none for powers of two.

    `backend`: of the default group, over which nothing is measured: those who wait in it sleep.
    """

    nodes: tuple[int, ...]
    backends: tuple[str, ...]
    ratio: float
    length: int
    seconds: float
    timeout_seconds: float
    output: Path | None
    backend: str = "gloo"

    def run(self, environment: DistributedEnvironment, _announce: Announce, /) -> int:
        """Measure; rank 0 prints the document or writes the file. A collective."""
        nodes_of_ranks = everyone(environment.node_rank)
        there = len(set(nodes_of_ranks))
        if not self.nodes:
            return replace(self, nodes=powers_of_two(there)).run(environment, _announce)
        if max(self.nodes) > there:
            raise UsageError(f"bench scaling: --nodes has {max(self.nodes)}, but the job has only {there}")
        trainer = Trainer(self.length)
        groups = self._groups(environment, nodes_of_ranks, trainer)
        phases = {
            phase: environment.node_rank < phase.nodes for phase in self._phases(environment.local_world_size)
        }
        pilot = self._match(trainer, groups, phases)
        found = self._measure(trainer, groups, phases)
        if environment.rank == 0:
            self._tell(
                {
                    **collectives.facts(),
                    "ranks_per_node": environment.local_world_size,
                    "batch": trainer.batch,
                    "length": self.length,
                    "gradient_bytes": trainer.bytes,
                    "embedding_bytes": trainer.embedding_bytes,
                    "buckets": BUCKETS,
                    "ratio": self.ratio,
                    "pilot": pilot,
                    "phases": documents(found),
                }
            )
        for group in groups.values():
            if group is not None:
                dist.destroy_process_group(group)
        return 0

    def _phases(self, ranks_per_node: int) -> list[Phase]:
        """Each number of nodes alone, then with each backend where there are several ranks."""
        return [
            Phase(nodes, backend)
            for nodes in self.nodes
            for backend in (None, *(self.backends if nodes * ranks_per_node > 1 else ()))
        ]

    def _groups(
        self, environment: DistributedEnvironment, nodes_of_ranks: list[int], trainer: Trainer
    ) -> dict[Phase, dist.ProcessGroup | None]:
        """The group of each phase that has one; None on ranks outside of it."""
        groups: dict[Phase, dist.ProcessGroup | None] = {}
        for phase in self._phases(environment.local_world_size):
            if phase.backend is None:
                continue
            BACKENDS[phase.backend](environment, JOIN_SECONDS)
            ranks = [rank for rank, node in enumerate(nodes_of_ranks) if node < phase.nodes]
            group = dist.new_group(ranks, backend=phase.backend, timeout=timedelta(seconds=self.timeout_seconds))
            inside = environment.rank in ranks
            groups[phase] = group if inside else None
            if inside:
                trainer.join(phase, group)
        return groups

    def _match(
        self,
        trainer: Trainer,
        groups: Mapping[Phase, dist.ProcessGroup | None],
        phases: Mapping[Phase, bool],
    ) -> dict[str, Any]:
        """Chooses the batch: the gradients' all_reduce by the fewest nodes takes `ratio` of computing's time."""
        alone = min(phases, key=lambda phase: (phase.nodes, phase.backend is not None))
        steps = []
        for batch in _TRIAL_BATCHES:
            trainer.use(batch)
            tries = [timed(lambda: trainer.steps(alone, 2), 2, phases[alone]).seconds for _ in range(4)]
            steps.append((batch, median(tries[1:])))
        step = StepTime.through(*steps)
        if not groups:
            trainer.use(_UNMATCHED_BATCH)
            return {"step": vars(step), "all_reduce": None, "backend": None, "nodes": None}
        first = next(iter(groups))
        work = all_reduces(trainer.buffer(trainer.bytes), groups[first], 2)
        communication = median(timed(work, 2, phases[first]).seconds for _ in range(5))
        trainer.use(step.batch(self.ratio, communication))
        return {
            "step": vars(step),
            "all_reduce": communication,
            "backend": first.backend,
            "nodes": first.nodes,
        }

    def _measure(
        self,
        trainer: Trainer,
        groups: Mapping[Phase, dist.ProcessGroup | None],
        phases: Mapping[Phase, bool],
    ) -> dict[Phase, Found]:
        """Rounds of all phases, there and back, within `seconds`, FEWEST_ROUNDS at least."""
        for phase in groups:
            self._check(trainer, phase, phases[phase])
        found = {phase: Found() for phase in phases}
        first = {phase: timed(lambda: trainer.steps(phase, 1), 1, phases[phase]).seconds for phase in phases}  # noqa: B023
        block_seconds = min(BLOCK_SECONDS, self.seconds / FEWEST_ROUNDS / len(phases))
        counts = {phase: max(1, round(block_seconds / seconds)) for phase, seconds in first.items()}
        a_round = sum(first[phase] * count for phase, count in counts.items())
        rounds = max(FEWEST_ROUNDS, round(self.seconds / a_round))
        order = list(phases)
        for number in range(rounds):
            for phase in order:
                count = counts[phase]
                block = timed(lambda: trainer.steps(phase, count), count, phases[phase])  # noqa: B023
                found[phase].blocks.append(block)
                for size in (SMALL_BYTES, trainer.bytes) if phase in groups else ():
                    work = all_reduces(trainer.buffer(size), groups[phase], 1)
                    one = timed(work, 1, phases[phase])
                    found[phase].all_reduce.setdefault(size, []).append(one.seconds)
            order.reverse()
            if dist.get_rank() == 0:
                collectives.say(f"round {number + 1} of {rounds}: {_in_words(found)}")
        return found

    def _check(self, trainer: Trainer, phase: Phase, takes_part: bool) -> None:
        """A collective: the ranks of the phase have the same gradients, which they have only by an exchange."""
        seen = [one for one in everyone(trainer.gradient(phase) if takes_part else None) if one is not None]
        if max(seen) - min(seen) > 1e-4 * max(seen):
            raise RuntimeError(f"{phase.backend} on {phase.nodes} nodes: gradients differ between ranks: {seen}")

    def _tell(self, document: dict[str, Any]) -> None:
        if self.output is None:
            print(json.dumps(document, indent=2), flush=True)
        else:
            write(document, self.output)


def _in_words(found: Mapping[Phase, Found]) -> str:
    return ", ".join(
        f"{phase.nodes} {phase.backend or 'apart'} {of.blocks[-1].seconds * 1e3:.0f} ms"
        for phase, of in found.items()
    )
