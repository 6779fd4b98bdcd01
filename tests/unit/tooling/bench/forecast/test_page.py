"""The page of `./inv plan-cluster --html`."""

from dataclasses import replace
from pathlib import Path

import pytest

from cpu_train_stack.page.blocks import Bars, Chart, Table
from tests.unit.tooling.bench.forecast.test_command import REQUEST
from tooling.basis.errors import UsageError
from tooling.bench.forecast import command, page, request


def test_the_charts_have_a_band_of_the_error_bars() -> None:
    plan = request.make(REQUEST)
    charts = [block for block in page.page(REQUEST, plan).sections[0].blocks if isinstance(block, Chart)]
    assert [(chart.title, chart.unit) for chart in charts] == [
        ("Time", "hours"), ("Cost", "node-hours"), ("Speed-up", "times one node")
    ]  # fmt: skip
    for chart in charts:
        value, low, high = chart.curves[:3]
        assert [curve.look for curve in (value, low, high)] == ["points", "band", "band"]
        assert list(value.steps) == [1, 2, 4, 8]
        for smallest, middle, largest in zip(low.values, value.values, high.values, strict=True):
            assert (smallest or 0) <= (middle or 0) <= (largest or 0)
    hours, cost = (charts[number].curves[0].values for number in (0, 1))
    assert cost == pytest.approx([nodes * (time or 0) for nodes, time in zip((1, 2, 4, 8), hours, strict=True)])


def test_the_parts_of_a_step_and_the_table_are_those_of_the_forecast() -> None:
    plan = request.make(REQUEST)
    found = page.page(REQUEST, plan)
    (bars,) = [block for block in found.sections[0].blocks if isinstance(block, Bars)]
    assert [bar.label for bar in bars.bars] == ["1 node", "2 nodes", "4 nodes", "8 nodes"]
    assert all(bar.total == pytest.approx(sum(bar.values)) for bar in bars.bars)
    (table,) = found.sections[1].blocks
    assert isinstance(table, Table)
    assert [row[0] for row in table.rows] == ["1", "2", "4", "8"]
    assert found.tiles[0].value == f"{plan.recommended} nodes"


def test_warnings_and_a_missing_recommendation_are_notices() -> None:
    slow = replace(REQUEST, network="100m", nodes="4,8", single_node_samples_per_second=0, cores=8, ghz=2.0,
                   isa="avx2")  # fmt: skip
    found = page.page(slow, request.make(slow))
    assert found.tiles == []
    assert found.notices[0].items[0].startswith("No number of nodes in this table")
    assert found.notices[1].items[0].startswith("The speed of one node is a guess")


def test_the_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "forecast.html"
    command.run(REQUEST, False, str(file))
    assert "Recommended:" in capsys.readouterr().out
    assert "Forecast: bert-base-uncased on 1 to 8 nodes" in file.read_text(encoding="utf-8")
    with pytest.raises(UsageError, match=r"--html .* cannot be written"):
        command.run(REQUEST, False, str(tmp_path))
