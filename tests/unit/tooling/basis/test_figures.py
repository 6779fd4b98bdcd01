"""The tables of measurements: how figures are written, and which columns and cells are left out."""

from typing import Any

import pytest

from tooling.basis import figures

ROW: dict[str, Any] = {
    "seconds": 0.0123456,
    "speed": 1234.5,
    "ratio": {"guide-bf16": 4.6987, "trl": None},
    "share": 0.456,
    "rounds": [1.26, 1.2941, 1.27],
    "equal": [2, 2],
    "bytes": 25 << 20,
    "preloads": ["libiomp5", "libtcmalloc"],
    "trains": False,
}


@pytest.mark.parametrize(
    ("form", "shown"),
    [
        ("{speed}", "1,234"),
        ("{seconds:ms}", "12.3"),
        ("{ratio[guide-bf16]:x}", "4.70x"),
        ("{share:%}", "46%"),
        ("{rounds:range}", "1.26 to 1.29"),
        ("{equal:range}", ""),
        ("{bytes:size}", "25 MiB"),
        ("{bytes:GB}", "0.0262"),
        ("{preloads}", "libiomp5, libtcmalloc"),
        ("{trains:forward and backward|forward}", "forward"),
        ("{ratio[trl]:x} of {speed}", ""),
        ("{ratio[none]:x}", ""),
        ("{none}", ""),
        ("{rounds[3]}", ""),
    ],
)
def test_a_figure_has_three_digits_and_its_unit_or_leaves_the_cell_empty(form: str, shown: str) -> None:
    assert figures.cell(form, ROW) == shown


def test_a_column_without_cells_is_left_out() -> None:
    columns = {"a": "{a}", "b": "{b}", "c": "{c}"}
    assert figures.page_table(columns, [{"a": 1, "b": None}, {"a": 2, "c": "x"}]).splitlines() == [
        "| a | c |",
        "| --- | --- |",
        "| 1 | |",
        "| 2 | x |",
    ]


@pytest.mark.parametrize(
    ("seconds", "said"), [(46.2, "46 s"), (279, "4 min 39 s"), (13860, "3 h 51 min"), (3599.7, "1 h 0 min")]
)
def test_a_duration_has_its_two_largest_units(seconds: float, said: str) -> None:
    assert figures.duration(seconds) == said
