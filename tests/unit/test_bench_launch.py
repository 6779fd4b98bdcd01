"""What `./inv bench launch` starts, and what it makes of the speeds."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from tooling import bench_launch
from tooling.errors import UsageError


def reports(*speeds: float) -> list[dict[str, Any]]:
    facts = {"ranks": 2, "backend": "gloo", "threads": 1, "cpus": 1, "preloads": ["libiomp5"]}
    return [{"samples_per_second": speed, **facts} for speed in speeds]


FOUND = {
    "torchrun, 2 ranks": reports(10, 20, 5),
    "launch, 2 ranks, gloo": reports(15, 24, 10),
    "launch, 2 ranks, ccl": reports(10, 40, 15),
    "run_cpu, 1 rank": reports(8, 8, 8),
    "run, 1 rank": reports(4, 16, 8),
}


def test_every_way_runs_the_same_script_and_is_compared_with_a_way_of_as_many_ranks() -> None:
    ways = {way.name: way for way in bench_launch.ways(4)}
    assert len(ways) == 5
    for name, way in ways.items():
        assert way.command[-1] == bench_launch.SCRIPT
        assert ways[way.against].against == way.against
        assert ("4 ranks" in name) is ("--nproc-per-node=4" in way.command) is ("4 ranks" in way.against)


def test_the_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    rows = {row["way"]: row for row in bench_launch.rows(bench_launch.ways(2), FOUND)}
    assert rows["launch, 2 ranks, gloo"]["ratio"] == 1.5  # 1.5, 1.2, 2; the medians' own would be 1.5 too
    assert rows["launch, 2 ranks, ccl"]["ratio"] == 2.0  # 1, 2, 3; of the medians 1.5
    assert rows["run, 1 rank"]["ratio"] == 1.0
    assert rows["torchrun, 2 ranks"]["ratio"] == 1.0
    assert rows["launch, 2 ranks, gloo"]["samples_per_second"] == 15
    assert rows["launch, 2 ranks, gloo"]["samples_per_second_range"] == [10, 24]


def test_the_table_names_what_a_ratio_is_of() -> None:
    out = StringIO()
    Console(file=out, width=200).print(bench_launch.table(bench_launch.rows(bench_launch.ways(2), FOUND)))
    assert "1.50 of torchrun, 2 ranks" in out.getvalue()
    assert "1.00 of run_cpu, 1 rank" in out.getvalue()


@pytest.mark.parametrize(("ranks", "rounds"), [(1, 5), (2, 0)])
def test_too_few_ranks_or_rounds_are_refused(ranks: int, rounds: int) -> None:
    with pytest.raises(UsageError, match="expected 2 ranks or more, 1 round or more"):
        bench_launch.run(None, ranks, rounds, (), False, print)
