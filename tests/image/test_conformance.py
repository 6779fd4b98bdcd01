"""torch's own suite for backends: what gloo passes ccl passes too, but for the documented differences.

A part: `./inv conformance` runs the whole. Left out are tests that need CUDA or four ranks, those of training,
which test_ccl.py has, and those that repeat others with a profiler or with a group of all ranks.
"""

from __future__ import annotations

import pytest

from tooling import conformance
from tooling.conformance import Comparison
from tooling.say import say

RANKS = 3
LEFT_OUT = "cuda|nccl|gpu|_group|ddp|data_?parallel|gradients|averager|sgd|model|static_graph|unused|profiler"
PART = f"(?i)^(?!.*({LEFT_OUT}))|test_ddp_logging_data_cpu|test_monitored_barrier_gloo"


@pytest.fixture(scope="module")
def comparison(image: str) -> Comparison:
    return conformance.compare(image, RANKS, PART, say)


def test_ccl_passes_what_gloo_passes_but_for_the_documented(comparison: Comparison) -> None:
    assert comparison.counts("gloo")["passed"] >= 45
    assert comparison.undocumented() == []


def test_every_documented_difference_is_one(comparison: Comparison) -> None:
    assert {row.test for row in comparison.rows} >= conformance.DIFFERENCES.keys()
    assert comparison.gone() == []


def test_nothing_hangs(comparison: Comparison) -> None:
    assert comparison.hung() == []
