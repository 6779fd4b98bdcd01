"""torch's own suite for backends: ccl passes every test that gloo passes, except for the documented differences.

Runs a part of the suite; `./inv dev conformance` runs the complete suite. Excluded are tests that need CUDA or
four ranks, tests of training (see test_ccl.py), and tests that repeat others with a profiler or a group of all
ranks.
"""

from fnmatch import fnmatchcase

import pytest

from tooling.checks import conformance
from tooling.checks.conformance import Comparison

RANKS = 3
EXCLUDED = "cuda|nccl|gpu|_group|ddp|data_?parallel|gradients|averager|sgd|model|static_graph|unused|profiler"
PART = f"(?i)^(?!.*({EXCLUDED}))|test_ddp_logging_data_cpu|test_monitored_barrier_gloo"


@pytest.fixture(scope="module")
def comparison(image: str) -> Comparison:
    return conformance.compare(image, RANKS, PART)


def test_ccl_passes_what_gloo_passes_except_for_documented_differences(comparison: Comparison) -> None:
    assert comparison.counts("gloo")["passed"] >= 45
    assert comparison.undocumented() == []


def test_every_documented_difference_still_exists(comparison: Comparison) -> None:
    for pattern in conformance.DIFFERENCES:
        assert [row for row in comparison.rows if row.differs and fnmatchcase(row.test, pattern)], pattern


def test_nothing_hangs(comparison: Comparison) -> None:
    assert comparison.hung() == []
