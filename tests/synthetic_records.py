"""Writes the record files of jobs that never ran, for tests of what reads them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cpu_train_stack.records import record
from cpu_train_stack.records.record import Event, Line, Log, Sample, Start, Steps

BEGIN = 1_790_000_000.0  # seconds since the epoch
GIBIBYTE = 1 << 30


def start(rank: int, world_size: int, ranks_per_node: int, steps: int, **more: Any) -> Start:
    """The Start of one rank with two cores."""
    local = rank % ranks_per_node
    cores = [2 * local, 2 * local + 1]
    node = [{"cpus": [cpu], "siblings": [cpu], "socket": 0, "node": 0} for cpu in range(2 * ranks_per_node)]
    topology = {
        "model": "Example CPU",
        "cores": node,
        "nodes": [{"number": 0, "cpus": cores, "memory_bytes": 64 * GIBIBYTE}],
    }
    found = Start(
        time=BEGIN,
        rank=rank,
        world_size=world_size,
        local_rank=local,
        local_world_size=ranks_per_node,
        node_rank=rank // ranks_per_node,
        host=f"node{rank // ranks_per_node}",
        launcher="torchrun",
        backend="ccl",
        job="example",
        pin="2.13",
        image="cpu-train-stack:2.13",
        command=["train", "--model_name_or_path", "bert-base-uncased", "--max_steps", str(steps)],
        versions={"torch": "2.13.0", "transformers": "5.23.0"},
        config={"learning_rate": 5e-05, "max_steps": steps, "seed": 42},
        cpu_model="Example CPU",
        bf16="avx512_bf16",
        cores=cores,
        threads=2,
        last_step=steps,
        rows_per_step=16 * world_size,
        plan={
            "cores": cores,
            "omp_num_threads": 2,
            "reasons": ["OMP_NUM_THREADS=2: one thread for each core"],
            "warnings": [],
        },
        topology=topology if local == 0 else {},
    )
    return replace(found, **more)


def lines(
    own: Start,
    first: int,
    last: int,
    compute: float = 0.8,
    slowest: float = 0.8,
    read: float = 0.01,
    tokens: int = 1000,
    throttled: float = 0.0,
    delayed: float = 0.0,
    seed: int = 0,
    steps_per_line: int = 1,
) -> list[Line]:
    """The lines of one rank for the steps first + 1 to last.

    `compute`, `read`: seconds per step of this rank; `slowest`: seconds per step of the slowest rank, without its
    network time. `tokens`: per step. `throttled`, `delayed`: seconds per step.
    """
    noise = random.Random(f"{seed} {own.rank}")
    found: list[Line] = []
    now = own.time + 10
    for step in range(first + steps_per_line, last + 1, steps_per_line):
        busy = (compute + read + 0.02) * noise.uniform(0.99, 1.01)
        seconds = max(busy, slowest + 0.03) + 0.05
        now += seconds * steps_per_line
        part = {
            "seconds": seconds,
            "forward": compute * 0.35,
            "backward": compute * 0.65,
            "wait": seconds - busy,
            "read": read,
            "optimizer": 0.02,
        }
        loss = 0.7 * math.exp(-step / last) + noise.uniform(-0.02, 0.02)
        found.append(
            Steps(
                time=round(now, 3), step=step, steps=steps_per_line,
                **{name: round(value * steps_per_line, 6) for name, value in part.items()},
                longest=round(seconds, 6), rows=16 * steps_per_line, computed=int(tokens * 1.02) * steps_per_line,
                useful=tokens * steps_per_line, loss=round(loss, 6),
            )
        )  # fmt: skip
        done = step - first
        if done % (5 * steps_per_line) == 0 or step + steps_per_line > last:
            found.append(
                Sample(
                    round(now, 3), step, int(2 * GIBIBYTE + 1e6 * done), done * compute * 2,
                    done * throttled * own.threads * own.local_world_size,
                    delayed=delayed, migrations=3, clock=2800.0,
                )
            )  # fmt: skip
        if own.rank == 0 and (step % 10 == 0 or steps_per_line > 10):
            values = {
                "loss": loss,
                "learning_rate": 5e-5 * (1 - step / last),
                "grad_norm": 1.0,
                "epoch": step / 100,
            }
            found.append(Log(round(now, 3), step, values))
        if own.rank == 0 and step % 50 == 0:
            found.append(
                Log(round(now, 3), step, {"eval_loss": loss, "eval_accuracy": 1 - loss, "epoch": step / 100})
            )
            now += 4
            found.append(Event(round(now, 3), step, "evaluation", 3.0))
            found.append(Event(round(now, 3), step, "checkpoint", 1.0))
    return found


def write(
    output: Path,
    world_size: int = 4,
    steps: int = 100,
    ranks_per_node: int = 2,
    slow: Mapping[int, Mapping[str, float]] | None = None,
    change: Callable[[Start], Start] = lambda start: start,
    steps_per_line: int = 1,
    end: Event | None = None,
) -> Path:
    """A complete job. `slow`: by rank, arguments of `lines` that differ. Returns `output`."""
    slow = slow or {}
    slowest = max([0.8, *(one.get("compute", 0.8) + one.get("read", 0.0) for one in slow.values())])
    for rank in range(world_size):
        own = change(start(rank, world_size, ranks_per_node, steps))
        more: dict[str, Any] = {"slowest": slowest, "steps_per_line": steps_per_line, **slow.get(rank, {})}
        found = lines(own, 0, steps, **more)
        last = end or Event(found[-1].time + 5, steps, "end")
        append(output, [own, *found, last])
    return output


def append(output: Path, found: list[Line]) -> None:
    """Append to the file of the rank whose Start is the first of the lines."""
    own = found[0]
    assert isinstance(own, Start)
    path = record.path(output, own.rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(map(record.encode, found))
