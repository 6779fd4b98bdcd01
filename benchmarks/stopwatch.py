"""Times Trainer's steps, agrees with the other ranks on their number, and profiles some of them."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch.nn.modules.module import register_module_forward_hook
from transformers import TrainerCallback

from benchmarks import pace
from benchmarks.split import ProfiledEvent, split


class Stopwatch(TrainerCallback):
    """Runs warm-up steps, measured steps, and steps under the profiler on rank 0, then ends the training.

    The time of a step starts at the end of the previous step, so that it includes data loading.
    """

    def __init__(self, seconds: float, steps: int, profile: bool) -> None:
        self._budget, self._steps, self._profile = seconds, steps, profile
        self._times: list[float] = []
        self._processor: list[float] = []  # CPU time of this process in each step
        self._mark = self._processor_mark = 0.0
        self._first = self._last = self._end = 0  # of the measured steps; of all steps
        self._shapes: list[tuple[int, int]] = []
        self._useful: list[int] = []  # tokens of each batch that are not padding
        self._labelled: list[int] = []  # tokens of each batch that have a label
        self._embedded = 0  # tokens that the model has looked up
        self._computed: list[int] = []  # the same in each step
        self._profiler: Any = None
        self._split: dict[str, float] | None = None

    def recording(self, collator: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The collator, which also records the shape (samples, tokens) of every batch and its useful tokens."""

        def collate(samples: Any) -> Any:
            batch = collator(samples)
            self._shapes.append(tuple(batch["input_ids"].shape))
            self._useful.append(int(batch["attention_mask"].sum()))
            labels = batch.get("labels")
            has_tokens = labels is not None and labels.shape == batch["input_ids"].shape
            self._labelled.append(int((labels[:, 1:] >= 0).sum()) if has_tokens else 0)
            return batch

        return collate

    def count_tokens(self, model: Any) -> None:
        """Count the tokens that the layers of `model` compute: those whose embedding it looks up."""

        def count(layer: Any, inputs: Any, _output: Any) -> None:
            if layer is embeddings:
                self._embedded += inputs[0].numel()

        embeddings = model.get_input_embeddings()
        # A hook of the layer itself would prevent the adaptation no-padding.
        register_module_forward_hook(count)

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._mark, self._processor_mark = time.perf_counter(), time.process_time()

    def on_step_end(self, _args: Any, _state: Any, control: Any, **_: Any) -> None:
        now = time.perf_counter()
        self._times.append(now - self._mark)
        self._processor.append(time.process_time() - self._processor_mark)
        self._computed.append(self._embedded)
        self._embedded = 0
        done = len(self._times)
        if done == 1:
            self._first = pace.warm_up(agreed(self._times[0]), self._budget)
        if done == self._first:
            self._last = done + pace.measured(agreed(self._times[-1]), self._budget, self._steps)
        elif done == self._last:
            self._extend_or_profile(done)
        if done == self._end:
            if self._profiler is not None:
                self._profiler.stop()
                self._split = self._split_profile(sum(self._times[self._last :]) * 1e6)
            control.should_training_stop = True
        self._mark, self._processor_mark = time.perf_counter(), time.process_time()

    def _extend_or_profile(self, done: int) -> None:
        steps = done - self._first
        spent = agreed(sum(self._times[self._first :]))
        more = pace.more(spent, steps, self._budget, fixed=self._steps > 0)
        if more:
            self._last = done + more
            return
        self._end = done + (pace.profiled(spent / steps) if self._profile else 0)
        if self._profile and rank() == 0:
            self._profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
            self._profiler.start()

    def report(self, batch: int) -> str:
        """The report of all ranks, as JSON. A collective operation: every rank must call it."""
        times = self._times[self._first : self._last]
        seconds = agreed(sum(times))
        shapes = Counter(self._shapes[self._first : self._last])
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        return json.dumps(
            {
                "samples_per_second": batch * ranks * len(times) / seconds,
                "ranks": ranks,
                "steps": len(times),
                "seconds": seconds,
                "cpu_seconds": total(sum(self._processor[self._first : self._last])),
                "warm_up": self._first,
                "tokens_useful": int(total(sum(self._useful[self._first : self._last]))),
                "tokens_labelled": int(total(sum(self._labelled[self._first : self._last]))),
                "tokens_computed": int(total(sum(self._computed[self._first : self._last]))),
                "shapes": [[samples, length, count] for (samples, length), count in sorted(shapes.items())],
                "peak_memory_bytes": int(total(peak_memory())),
                "threads": torch.get_num_threads(),
                "backend": dist.get_backend() if dist.is_initialized() else None,
                "preloads": preloads(),
                "split": self._split,
                "torch": str(torch.__version__),
                "environment": {
                    name: value
                    for name, value in sorted(os.environ.items())
                    if name.startswith(("OMP_", "KMP_", "CCL_", "LD_PRELOAD", "MALLOC_"))
                },
            }
        )

    def _split_profile(self, microseconds: float) -> dict[str, float]:
        events = [
            ProfiledEvent(
                event.name, event.time_range.start, event.time_range.end, event.thread, bool(event.is_async)
            )
            for event in self._profiler.events()
        ]
        end = max(event.end for event in events if not event.is_async)
        return {name: round(share, 4) for name, share in split(events, end - microseconds, end).items()}


def rank() -> int:
    return int(dist.get_rank()) if dist.is_initialized() else 0


def agreed(value: float) -> float:
    """The largest value of all ranks, which all have to run the same number of steps."""
    return _reduced(value, "MAX")


def total(value: float) -> float:
    """The sum of the values of all ranks."""
    return _reduced(value, "SUM")


def _reduced(value: float, how: str) -> float:
    if not dist.is_initialized():
        return value
    tensor = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(tensor, op=getattr(dist.ReduceOp, how))
    return float(tensor.item())


def peak_memory() -> int:
    """The peak resident memory of this process in bytes, including libraries."""
    status = Path("/proc/self/status").read_text()
    found = re.search(r"^VmHWM:\s*(\d+) kB$", status, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def preloads() -> list[str]:
    """The allocators and OpenMP libraries that are mapped in this process."""
    mapped = Path("/proc/self/maps").read_text()
    names = ("libtcmalloc", "libjemalloc", "libiomp5", "libgomp")
    return [name for name in names if re.search(rf"/{name}[^/\n]*\n", mapped)]
