"""The speed on several nodes, next to the forecast."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.page.blocks import Block, Chart, Table
from cpu_train_stack.report import compare, folder, scaling
from tests import synthetic_records


def forecast(output: Path, samples: float, batch: int = 64) -> None:
    """For 1, 2 and 4 nodes: that speed for two nodes, plus or minus 10%."""
    rows = [
        {
            "nodes": nodes,
            "global_batch": batch * nodes // 2,
            "samples_per_second": {"value": speed, "low": 0.9 * speed, "high": 1.1 * speed},
        }
        for nodes, speed in ((1, samples / 2), (2, samples), (4, samples * 2))
    ]
    (output / scaling.FORECAST).write_text(json.dumps({"rows": rows}))


def section(page: Any) -> list[Block]:
    return next((list(one.blocks) for one in page.sections if one.name == "scaling"), [])


@pytest.mark.parametrize(
    ("share", "batch", "result"),
    [
        (1.0, 64, "as predicted"),
        (0.8, 64, "25% faster than predicted"),
        (2.0, 64, "50% slower than predicted"),
        (1.0, 128, "not comparable: 64 rows in a step, the forecast is for 128"),
    ],
)
def test_a_job_is_compared_with_its_forecast(share: float, batch: int, result: str, tmp_path: Path) -> None:
    output = synthetic_records.write(tmp_path, world_size=4, ranks_per_node=2)
    measured = folder.of(output).tiles
    (speed,) = [tile.value for tile in measured if tile.label == "Samples/s"]
    forecast(output, float(speed) * share, batch)
    chart, table = section(folder.of(output))
    assert isinstance(chart, Chart)
    assert [(curve.label, list(curve.steps)) for curve in chart.curves] == [
        ("measured", [2]),
        ("forecast", [1, 2, 4]),
        ("forecast, low", [1, 2, 4]),
        ("forecast, high", [1, 2, 4]),
    ]
    assert isinstance(table, Table)
    assert table.rows[0][1:3] == ["2", speed]
    assert table.rows[0][-1] == result


def test_without_a_forecast_one_job_has_no_section(tmp_path: Path) -> None:
    assert section(folder.of(synthetic_records.write(tmp_path))) == []


def test_jobs_on_different_numbers_of_nodes_show_their_speed_up(tmp_path: Path) -> None:
    jobs = [
        synthetic_records.write(tmp_path / name, world_size=size, ranks_per_node=1)
        for name, size in (("two", 2), ("one", 1), ("four", 4))
    ]
    file = compare.write(jobs, tmp_path / "compare.html")
    text = file.read_text(encoding="utf-8")
    found = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    (table,) = [
        block for part in found["sections"] if part["name"] == "scaling" for block in part["blocks"]
        if block["is"] == "table"
    ]  # fmt: skip
    assert [row[:2] for row in table["rows"]] == [["one", "1"], ["two", "2"], ["four", "4"]]
    assert [row[3][0] for row in table["rows"]] == ["–", "2", "4"]


@pytest.mark.parametrize("text", ["{", "[]", '{"rows": [{"nodes": 1}]}', '{"rows": 1}'])
def test_a_damaged_forecast_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / scaling.FORECAST).write_text(text)
    with pytest.raises(UsageError, match=r"output of `\./inv plan-cluster --json`, found .*delete it"):
        scaling.read(tmp_path)
