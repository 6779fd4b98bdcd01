"""The measurements of `bench`: cases, sizes, repetitions; nodes and batches. Pure and torch-free."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median

COLLECTIVES = ("all_reduce", "broadcast", "all_gather", "reduce_scatter")
# torch's names, and bytes per element.
DTYPES = {"float32": 4, "bfloat16": 2}
# 25 MiB is the size of DDP's buckets, the most frequent size in a training job.
SIZES = (4 << 10, 64 << 10, 1 << 20, 25 << 20, 100 << 20)
# The other collectives are measured at two sizes: a small message and DDP's bucket.
SIZES_OF_OTHERS = (4 << 10, 25 << 20)
LARGEST = 1 << 30
# The predicted ratio of communication to computing of QQP on two nodes, the longest job of the guides
# (tests/unit/tooling/bench/forecast/test_published.py): 0.16 s for 433 MB at 25 Gbit/s, 1.37 s a step.
GUIDES_RATIO = 0.1196

# Calls are timed in blocks: a call of microseconds is too short to time.
BLOCK_SECONDS = 0.02
MOST_CALLS = 500
# An odd number has a median value; a smaller number does not show the spread.
FEWEST_REPETITIONS = 7
MOST_REPETITIONS = 41

# bf16 represents the integers up to this one.
_EXACT = 256

_SIZE = re.compile(r"([1-9][0-9]{0,9})([KMG]?)")


@dataclass(frozen=True)
class Case:
    """A row for each backend. `bytes`: the complete tensor (all_gather's output, reduce_scatter's input)."""

    collective: str
    dtype: str
    bytes: int

    def __str__(self) -> str:
        return f"{self.collective} {self.dtype} {readable(self.bytes)}"


def input_of(rank: int, collective: str) -> int:
    """The number that fills a rank's input. In every dtype, all partial sums are exact, in any order."""
    return int(rank < _EXACT) if collective in ("all_reduce", "reduce_scatter") else rank % _EXACT + 1


@dataclass(frozen=True)
class Repetitions:
    """`calls`: in a block, by backend. `blocks`: of each backend, in turn."""

    calls: dict[str, int]
    blocks: int


@dataclass(frozen=True)
class StepTime:
    """Seconds of a training step: `offset`, plus `a_sample` for each sample."""

    offset: float
    a_sample: float

    @classmethod
    def fit(cls, small: tuple[int, float], large: tuple[int, float]) -> StepTime:
        """From two batches and their seconds. `a_sample` is positive even if the larger batch is faster."""
        a_sample = max(1e-6, (large[1] - small[1]) / (large[0] - small[0]))
        return cls(max(0.0, small[1] - a_sample * small[0]), a_sample)

    def batch(self, ratio: float, communication: float) -> int:
        """The number of samples that take `communication` / `ratio` seconds; at least one."""
        return max(1, round((communication / ratio - self.offset) / self.a_sample))


def default() -> list[Case]:
    """all_reduce in every size and dtype; the other collectives in SIZES_OF_OTHERS and float32."""
    others = [Case(name, "float32", size) for name in COLLECTIVES[1:] for size in SIZES_OF_OTHERS]
    return [*(Case("all_reduce", dtype, size) for dtype in DTYPES for size in SIZES), *others]


def chosen(
    collectives: Sequence[str] | None, dtypes: Sequence[str] | None, sizes: Sequence[int] | None
) -> list[Case]:
    """All combinations of the given values; `default()` if all are None."""
    if not (collectives or dtypes or sizes):
        return default()
    return [Case(*case) for case in product(collectives or ("all_reduce",), dtypes or DTYPES, sizes or SIZES)]


def complete_elements(case: Case, ranks: int) -> int:
    """Elements of the complete tensor: a multiple of `ranks`, at least one per rank."""
    return max(1, case.bytes // DTYPES[case.dtype] // ranks) * ranks


def repetitions(call_seconds: dict[str, float], row_seconds: float) -> Repetitions:
    """How often to measure a case within about `row_seconds`. `call_seconds`: of one call, by backend."""
    calls = {
        backend: max(1, min(MOST_CALLS, round(BLOCK_SECONDS / max(seconds, 1e-9))))
        for backend, seconds in call_seconds.items()
    }
    once = sum(calls[backend] * seconds for backend, seconds in call_seconds.items())
    blocks = max(FEWEST_REPETITIONS, min(MOST_REPETITIONS, round(row_seconds / max(once, 1e-9))))
    return Repetitions(calls, blocks)


def longest(times_of_ranks: Sequence[Sequence[float]]) -> list[float]:
    """The longest time of each repetition: a collective ends with its last rank."""
    return [max(times) for times in zip(*times_of_ranks)]


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """First quartile, median and third quartile. Each is one of the values, or the mean of two."""
    ordered = sorted(values)
    half = len(ordered) // 2
    if not half:
        return ordered[0], ordered[0], ordered[0]
    return median(ordered[:half]), median(ordered), median(ordered[-half:])


def digits(value: float) -> float:
    """Four significant digits: the spread of measurements is larger than the error of rounding."""
    return float(f"{value:.4g}")


def parse_size(text: str) -> int:
    """`4096`, `4K` or `25M` in bytes. K, M and G are powers of 1024."""
    match = _SIZE.fullmatch(text.strip())
    size = int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]] if match else 0
    if not 1 <= size <= LARGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: expected bytes, 64K or 25M, at most 1G")
    return size


def readable(size: int) -> str:
    """`4 KiB`, `25 MiB` or `1 GiB`; bytes if the size is not a multiple of 1 KiB."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << shift and size % (1 << shift) == 0:
            return f"{size >> shift} {unit}"
    return f"{size} B"


def powers_of_two(most: int) -> tuple[int, ...]:
    """1, 2, 4, ... up to `most`."""
    return tuple(1 << power for power in range(most.bit_length()))
