"""`bench scaling`: one training step on 1, 2, 4, ... nodes, in turn in the same processes.

The nodes that take no part in a phase sleep. Every rank has the same batch in every phase, so twice the nodes
process twice the samples in a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from statistics import median
from typing import Any

import torch.distributed as dist

from cpu_train_stack.bench.arguments import Scaling
from cpu_train_stack.bench.cases import StepTime, powers_of_two
from cpu_train_stack.bench.output import facts, publish
from cpu_train_stack.bench.phases import (
    BUCKETS,
    SMALL_BYTES,
    Block,
    Measurements,
    Phase,
    Trainer,
    all_reduces,
    documents,
    timed,
)
from cpu_train_stack.cli.say import say
from cpu_train_stack.group.backends import BACKENDS
from cpu_train_stack.group.create import JOIN_SECONDS, agree, gather
from cpu_train_stack.placement.detect import DistributedEnvironment

# The longest block: long compared with a period of a CPU quota.
BLOCK_SECONDS = 1.0
FEWEST_ROUNDS = 3
# Two batches show a step's constant time and its time per sample.
_TRIAL_BATCHES = (4, 12)
_UNMATCHED_BATCH = 8


def run(options: Scaling, environment: DistributedEnvironment) -> int:
    """Measure. Rank 0 prints the document or writes the file. A collective."""
    nodes_of_ranks = gather(environment.node_rank)
    available = len(set(nodes_of_ranks))
    numbers = sorted(set(options.nodes or powers_of_two(available)))
    if numbers[-1] > available:
        # Every rank ends here, and rank 0 prints the line.
        agree(f"bench scaling: --nodes has {numbers[-1]}, but the job has only {available}: start more nodes")
    trainer = Trainer(options.length)
    phases: list[Phase] = []
    for nodes in numbers:
        phases += _phases(options, environment, nodes, nodes_of_ranks, trainer)
    pilot = _choose_batch(options.ratio, trainer, phases)
    measured = _measure(options.seconds, trainer, phases)
    if environment.rank == 0:
        document = {
            **facts(),
            "ranks_per_node": environment.local_world_size,
            "batch": trainer.batch,
            "length": options.length,
            "gradient_bytes": trainer.bytes,
            "embedding_bytes": trainer.embedding_bytes,
            "buckets": BUCKETS,
            "ratio": options.ratio,
            "pilot": pilot,
            "phases": documents(measured),
        }
        publish(document, options.output)
    for phase in phases:
        if phase.group is not None:
            dist.destroy_process_group(phase.group)
    return 0


def _phases(
    options: Scaling, environment: DistributedEnvironment, nodes: int, nodes_of_ranks: list[int], trainer: Trainer
) -> list[Phase]:
    """The phases of one number of nodes: every rank alone, then all ranks with each backend. A collective."""
    ranks = [rank for rank, node in enumerate(nodes_of_ranks) if node < nodes]
    takes_part = environment.rank in ranks
    phases = [Phase(nodes, None, takes_part, None)]
    for backend in options.backends if len(ranks) > 1 else ():  # equal on all ranks, also on uneven nodes
        BACKENDS[backend](environment, JOIN_SECONDS)
        group = dist.new_group(ranks, backend=backend, timeout=timedelta(seconds=options.timeout_seconds))
        phases.append(Phase(nodes, backend, takes_part, group if takes_part else None))
        if takes_part:
            trainer.join(phases[-1])
    return phases


def _choose_batch(ratio: float, trainer: Trainer, phases: Sequence[Phase]) -> dict[str, Any]:
    """Choose the batch: all_reduce of the gradients on the fewest nodes takes `ratio` of computing."""
    alone = phases[0]
    steps = []
    for batch in _TRIAL_BATCHES:
        trainer.use(batch)
        tries = [_steps(trainer, alone, 2).seconds for _ in range(4)]
        steps.append((batch, median(tries[1:])))
    step = StepTime.fit(*steps)
    together = next((phase for phase in phases if phase.backend), None)
    if together is None:
        trainer.use(_UNMATCHED_BATCH)
        return {"step": vars(step), "all_reduce": None, "backend": None, "nodes": None}
    work = all_reduces(trainer.buffer(trainer.bytes), together.group, 2)
    communication = median(timed(work, 2, together.takes_part).seconds for _ in range(5))
    trainer.use(step.batch(ratio, communication))
    return {
        "step": vars(step),
        "all_reduce": communication,
        "backend": together.backend,
        "nodes": together.nodes,
    }


def _measure(seconds: float, trainer: Trainer, phases: Sequence[Phase]) -> dict[Phase, Measurements]:
    """Rounds of all phases, alternately forwards and backwards: for `seconds`, but at least FEWEST_ROUNDS."""
    for phase in phases:
        if phase.backend:
            _check_gradients(trainer, phase)
    measured = {phase: Measurements() for phase in phases}
    first = {phase: _steps(trainer, phase, 1).seconds for phase in phases}
    block_seconds = min(BLOCK_SECONDS, seconds / FEWEST_ROUNDS / len(phases))
    counts = {phase: max(1, round(block_seconds / step)) for phase, step in first.items()}
    round_seconds = sum(first[phase] * count for phase, count in counts.items())
    rounds = max(FEWEST_ROUNDS, round(seconds / round_seconds))
    order = list(phases)
    for number in range(rounds):
        for phase in order:
            measured[phase].blocks.append(_steps(trainer, phase, counts[phase]))
            for size in (SMALL_BYTES, trainer.bytes) if phase.backend else ():
                work = all_reduces(trainer.buffer(size), phase.group, 1)
                block = timed(work, 1, phase.takes_part)
                measured[phase].all_reduce.setdefault(size, []).append(block.seconds)
        order.reverse()
        if dist.get_rank() == 0:
            say(f"round {number + 1} of {rounds}: {_last_blocks(measured)}")
    return measured


def _steps(trainer: Trainer, phase: Phase, count: int) -> Block:
    """`count` training steps of a phase, timed. A collective."""
    return timed(lambda: trainer.steps(phase, count), count, phase.takes_part)


def _check_gradients(trainer: Trainer, phase: Phase) -> None:
    """A collective: fail if the gradients of the phase's ranks differ, because the ranks did not exchange them."""
    sums = [value for value in gather(trainer.gradient(phase) if phase.takes_part else None) if value is not None]
    if max(sums) - min(sums) > 1e-4 * max(sums):
        raise RuntimeError(f"{phase.backend} on {phase.nodes} nodes: gradients differ between ranks: {sums}")


def _last_blocks(measured: Mapping[Phase, Measurements]) -> str:
    return ", ".join(
        f"{phase.nodes} {phase.backend or 'alone'} {found.blocks[-1].seconds * 1e3:.0f} ms"
        for phase, found in measured.items()
    )
