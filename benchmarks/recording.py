"""What recording the steps costs: one training in which one step of each pair is recorded, in random order.

    docker run --rm -v "$PWD/benchmarks:/benchmarks:ro" cpu-train-stack:2.13 \\
        run --no-adapt step-records /benchmarks/recording.py

Prints the mean difference within the pairs and its standard error, in wall clock time and in the CPU time of the
training thread, which other processes disturb less.
"""

# ruff: noqa: ARG002 - transformers decides what a callback is called with.

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

from cpu_train_stack.adapt.step_clock import StepClock, StepRecorder

METHODS = ("get_batch_samples", "training_step", "compute_loss", "log")


class Switch(TrainerCallback):
    """Records one step of each pair, if `with_records`, and measures every step."""

    def __init__(self, trainer: Trainer, with_records: bool) -> None:
        self._trainer = trainer
        self._without = {name: getattr(trainer, name) for name in METHODS}
        self._records = StepRecorder(StepClock(trainer)) if with_records else None
        self._with = {name: getattr(trainer, name) for name in METHODS}
        self._order = [True, False]
        self.seconds: list[tuple[bool, float, float]] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._records is not None:
            self._records.on_train_begin(args, state, control)
        self._next(0)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        recorded = self._order[(state.global_step - 1) % 2]
        if recorded and self._records is not None:
            self._records.on_step_end(args, state, control)
        self.seconds.append((recorded, time.perf_counter() - self._wall, time.thread_time() - self._cpu))
        self._next(state.global_step)

    def _next(self, step: int) -> None:
        if step % 2 == 0:
            random.shuffle(self._order)
        for name, method in (self._with if self._order[step % 2] else self._without).items():
            setattr(self._trainer, name, method)
        self._wall, self._cpu = time.perf_counter(), time.thread_time()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--neither", action="store_true", help="record no step: the noise of this benchmark")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        switch = train(options, folder)
    found: dict[str, object] = {"recorded": not options.neither}
    for place, name in ((1, "wall"), (2, "cpu")):
        found[name] = summary([(bool(one[0]), one[place]) for one in switch.seconds])
    print(json.dumps(found, indent=2))


def train(options: argparse.Namespace, folder: str) -> Switch:
    """Every batch is the same, and is used twice."""
    torch.manual_seed(0)
    config = BertConfig(hidden_size=384, num_hidden_layers=options.layers, num_attention_heads=12,
                        intermediate_size=1536, vocab_size=1000)  # fmt: skip
    row = {"input_ids": torch.randint(10, 1000, (options.tokens,)), "attention_mask": torch.ones(options.tokens),
           "labels": torch.tensor(1)}  # fmt: skip
    arguments = TrainingArguments(
        folder, max_steps=options.steps, per_device_train_batch_size=options.rows, report_to=[],
        logging_steps=10**6, save_strategy="no", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(BertForSequenceClassification(config), arguments, train_dataset=[row] * options.rows)
    switch = Switch(trainer, not options.neither)
    trainer.add_callback(switch)
    trainer.train()
    return switch


def summary(steps: Sequence[tuple[bool, float]]) -> dict[str, float]:
    """The mean difference of the pairs, without the tenths at both ends, and its standard error."""
    pairs = [dict(steps[place : place + 2]) for place in range(20, len(steps) - 1, 2)]
    differences = sorted(pair[True] - pair[False] for pair in pairs)
    cut = len(differences) // 10
    kept = differences[cut : len(differences) - cut]
    # Of a mean without its ends (Tukey and McLaughlin 1963): the ends count as the nearest kept value.
    winsorized = [kept[0]] * cut + kept + [kept[-1]] * cut
    error = statistics.stdev(winsorized) / (0.8 * math.sqrt(len(differences)))
    step = statistics.median(pair[False] for pair in pairs)
    mean = statistics.mean(kept)
    return {
        "step_ms": round(1e3 * step, 3),
        "difference_ms": round(1e3 * mean, 4),
        "error_ms": round(1e3 * error, 4),
        "share": round(mean / step, 5),
        "pairs": len(pairs),
    }


if __name__ == "__main__":
    main()
