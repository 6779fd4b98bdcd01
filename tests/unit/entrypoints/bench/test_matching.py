"""How `bench scaling` chooses batch and numbers of nodes, and what it reads of a quota: parts without torch."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrypoints.bench.matching import StepTime, powers_of_two
from entrypoints.machine.cgroups import throttled_seconds


@given(
    offset=st.floats(0, 1),
    a_sample=st.floats(1e-3, 1),
    ratio=st.floats(0.01, 2),
    communication=st.floats(1e-3, 1),
)
def test_computing_the_batch_takes_what_the_ratio_asks_for(
    offset: float, a_sample: float, ratio: float, communication: float
) -> None:
    step = StepTime.through((4, offset + 4 * a_sample), (12, offset + 12 * a_sample))
    assert step.a_sample == pytest.approx(a_sample)
    batch = step.batch(ratio, communication)
    assert batch >= 1
    if batch > 1:
        assert abs(step.offset + batch * step.a_sample - communication / ratio) <= 0.51 * step.a_sample


def test_a_larger_batch_that_is_faster_makes_no_negative_time() -> None:
    step = StepTime.through((4, 0.5), (12, 0.4))
    assert step.a_sample > 0
    assert 0 <= step.offset <= 0.5


@pytest.mark.parametrize(
    ("most", "found"), [(1, (1,)), (2, (1, 2)), (3, (1, 2)), (4, (1, 2, 4)), (9, (1, 2, 4, 8))]
)
def test_nodes_are_powers_of_two(most: int, found: tuple[int, ...]) -> None:
    assert powers_of_two(most) == found


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("sys/fs/cgroup/cpu.stat", "usage_usec 9000000\nnr_throttled 7\nthrottled_usec 2500000\n"),
        ("sys/fs/cgroup/cpu/cpu.stat", "nr_periods 9\nnr_throttled 7\nthrottled_time 2500000000\n"),
    ],
    ids=["version 2", "version 1"],
)
def test_the_time_in_which_a_quota_was_used_up_is_read(file: str, text: str, tmp_path: Path) -> None:
    assert throttled_seconds(tmp_path) == 0
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(text)
    assert throttled_seconds(tmp_path) == pytest.approx(2.5)
