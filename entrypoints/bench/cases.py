"""What is measured, and how often: cases, blocks of calls, repetitions. Pure and torch-free."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median

COLLECTIVES = ("all_reduce", "broadcast", "all_gather", "reduce_scatter")
# By torch's own names. Bytes of an element.
DTYPES = {"float32": 4, "bfloat16": 2}
# 25 MiB is the size of DDP's buckets: what a training job calls most.
SIZES = (4 << 10, 64 << 10, 1 << 20, 25 << 20, 100 << 20)
# The other collectives are measured where all_reduce's targets are: a small message and DDP's bucket.
SIZES_OF_OTHERS = (4 << 10, 25 << 20)
LARGEST = 1 << 30

# A block is timed as a whole, so that a call of microseconds is not timed by itself.
BLOCK_SECONDS = 0.02
MOST_CALLS = 500
# An odd number has a middle, and fewer say nothing about the spread.
FEWEST_REPETITIONS = 7
MOST_REPETITIONS = 41

_SIZE = re.compile(r"([1-9][0-9]{0,9})([KMG]?)")


@dataclass(frozen=True)
class Case:
    """One row for each backend. `bytes`: of the whole tensor, that is of all_gather's output and of
    reduce_scatter's input."""

    collective: str
    dtype: str
    bytes: int

    def __str__(self) -> str:
        return f"{self.collective} {self.dtype} {readable(self.bytes)}"


@dataclass(frozen=True)
class Repetitions:
    """`calls` in a block, by backend; `blocks` of each backend, in turn."""

    calls: dict[str, int]
    blocks: int


def default() -> list[Case]:
    """all_reduce at every size and type, the others where it is cheap."""
    others = [Case(name, "float32", size) for name in COLLECTIVES[1:] for size in SIZES_OF_OTHERS]
    return [*(Case("all_reduce", dtype, size) for dtype in DTYPES for size in SIZES), *others]


def chosen(
    collectives: Sequence[str] | None, dtypes: Sequence[str] | None, sizes: Sequence[int] | None
) -> list[Case]:
    """All combinations of what is given; `default` where nothing is."""
    if not (collectives or dtypes or sizes):
        return default()
    return [Case(*case) for case in product(collectives or ("all_reduce",), dtypes or DTYPES, sizes or SIZES)]


def whole_elements(case: Case, ranks: int) -> int:
    """Elements of the whole tensor, so many that each rank has the same part of it, and one at least."""
    return max(1, case.bytes // DTYPES[case.dtype] // ranks) * ranks


def repetitions(call_seconds: dict[str, float], row_seconds: float) -> Repetitions:
    """How often to measure a case whose calls take about `call_seconds`, by backend, in about `row_seconds`."""
    calls = {
        backend: max(1, min(MOST_CALLS, round(BLOCK_SECONDS / max(seconds, 1e-9))))
        for backend, seconds in call_seconds.items()
    }
    once = sum(calls[backend] * seconds for backend, seconds in call_seconds.items())
    blocks = max(FEWEST_REPETITIONS, min(MOST_REPETITIONS, round(row_seconds / max(once, 1e-9))))
    return Repetitions(calls, blocks)


def longest(times_of_ranks: Sequence[Sequence[float]]) -> list[float]:
    """A collective is over when its last rank is: the longest time of each repetition."""
    return [max(times) for times in zip(*times_of_ranks)]


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """First quartile, median and third quartile; each is one of the values or between two of them."""
    ordered = sorted(values)
    half = len(ordered) // 2
    if not half:
        return ordered[0], ordered[0], ordered[0]
    return median(ordered[:half]), median(ordered), median(ordered[-half:])


def parse_size(text: str) -> int:
    """`4096`, `4K`, `25M`: bytes, with K, M and G for powers of 1024."""
    match = _SIZE.fullmatch(text.strip())
    size = int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]] if match else 0
    if not 1 <= size <= LARGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: expected bytes, 64K or 25M, at most 1G")
    return size


def readable(size: int) -> str:
    """`4 KiB`, `25 MiB`; bytes where it is no whole number of those."""
    for unit, shift in (("MiB", 20), ("KiB", 10)):
        if size >= 1 << shift and size % (1 << shift) == 0:
            return f"{size >> shift} {unit}"
    return f"{size} B"
