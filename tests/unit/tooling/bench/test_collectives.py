"""`./inv bench collectives`: the document, the table and the picture."""

import struct
from pathlib import Path
from typing import Any

import pytest

from cpu_train_stack.bench.report import speedups
from cpu_train_stack.cli.errors import UsageError
from tooling.bench import collectives, plots
from tooling.bench.collectives import CollectivesOptions
from tooling.image.choice import Choice

MIB = 1 << 20


def row(where: str, backend: str, size: int, microseconds: float, dtype: str = "float32") -> dict[str, Any]:
    one = where == "one-container"
    return {
        "where": where,
        "backend": backend,
        "collective": "all_reduce",
        "dtype": dtype,
        "bytes": size,
        "ranks": 2,
        "latency_us": microseconds,
        "algbw_gbytes_per_s": size / microseconds / 1e3,
        "ceiling": "memory-copy" if one else "tcp-both-ways",
        "ceiling_factor": 1.0,
        "ceiling_share": 0.7 if size > 16 * MIB else None,
    }


def document(where: str, backends: tuple[str, ...] = ("ccl", "gloo")) -> dict[str, Any]:
    times = {"ccl": 10.0, "gloo": 2000.0}
    sizes = (4096, 25 * MIB)
    memory = {("memory-copy", 25 * MIB): 14.0, ("memory-copy", MIB): 90.0}
    ceilings = memory if where == "one-container" else {("tcp-one-way", None): 1.5, ("tcp-both-ways", None): 1.1}
    found: dict[str, Any] = {
        "pin": "2.13",
        "torch": "2.13.0+cpu",
        "cpu": "A processor",
        "environment": {"FI_PROVIDER": "tcp"},
        "rows": [
            row(where, name, size, times[name] * size / 4096, dtype)
            for dtype in ("float32", "bfloat16")
            for size in sizes
            for name in backends
        ],
        "ceilings": [
            {"where": where, "what": name, "bytes": size, "gbytes_per_s": value}
            for (name, size), value in ceilings.items()
        ],
    }
    return {**found, "speedups": speedups(found["rows"])}


@pytest.fixture
def merged() -> dict[str, Any]:
    facts = {"date": "2026-01-02T03:04:05+00:00", "image": "sha256:1", "cpus": 2}
    return collectives.merge([document("one-container"), document("two-containers")], facts)


def test_a_merged_document_has_every_row_and_ceiling_and_the_environment(merged: dict[str, Any]) -> None:
    assert [entry["where"] for entry in merged["rows"]] == ["one-container"] * 8 + ["two-containers"] * 8
    assert [entry["what"] for entry in merged["ceilings"]] == ["memory-copy"] * 2 + [
        "tcp-one-way",
        "tcp-both-ways",
    ]
    assert (merged["pin"], merged["cpu"], merged["image"]) == ("2.13", "A processor", "sha256:1")
    assert merged["environment"].keys() == {"one-container", "two-containers"}


def test_the_table_has_every_place_in_80_characters(merged: dict[str, Any]) -> None:
    lines = collectives.table(merged).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "one container, 2 ranks"
    assert "two containers, 2 ranks" in lines
    assert lines[2].split() == ["all_reduce", "float32", "4", "KiB", "ccl", "10.0", "0.41", "200.0x"]
    assert lines[4].split()[-2:] == ["200.0x", "70%"]
    assert "ceiling memory-copy of 25 MiB: 14.00 GB/s" in lines
    assert "ceiling tcp-both-ways: 1.10 GB/s" in lines


def test_the_rows_of_a_curve_are_sorted_by_size(merged: dict[str, Any]) -> None:
    merged["rows"].reverse()
    curves = plots.curves(merged, "one-container")
    assert set(curves) == {
        ("ccl", "float32"),
        ("ccl", "bfloat16"),
        ("gloo", "float32"),
        ("gloo", "bfloat16"),
    }
    for curve in curves.values():
        assert [row["bytes"] for row in curve] == [4096, 25 * MIB]


def test_ceilings_are_curves_over_the_sizes_in_the_picture(merged: dict[str, Any]) -> None:
    one = plots.ceilings(merged, "one-container")
    assert one == [("memory copy of one core: 14", [(25 * MIB, 14.0)])]
    two = plots.ceilings(merged, "two-containers")
    assert [curve for _name, curve in two] == [
        [(4096, 1.5), (25 * MIB, 1.5)],
        [(4096, 1.1), (25 * MIB, 1.1)],
    ]


def test_the_picture_has_a_column_for_each_place(merged: dict[str, Any], tmp_path: Path) -> None:
    plots.collectives(merged, tmp_path / "both.png")
    alone = collectives.merge([document("one-container")], {"date": "2026-01-02", "image": "", "cpus": 2})
    plots.collectives(alone, tmp_path / "one.png")
    widths = []
    for name in ("both.png", "one.png"):
        data = (tmp_path / name).read_bytes()
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        assert len(data) > 20_000
        widths.append(struct.unpack(">I", data[16:20])[0])
    assert widths[0] > 1.5 * widths[1] > 600


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param({"nodes": 0}, "--nodes is 0, expected 1 or more", id="nodes"),
        pytest.param({"ranks": 1}, "--ranks is 1, expected 2 or more", id="ranks"),
        pytest.param({"seconds": 0}, "--seconds is 0, expected more than 0", id="seconds"),
        pytest.param({"sizes": "4K,4Q"}, "--sizes: '4Q' is not a size: expected bytes, 64K or 25M", id="size"),
        pytest.param({"sizes": ""}, "--sizes: '' is not a size", id="no-size"),
    ],
)
def test_bad_options_are_refused_before_the_build(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        CollectivesOptions(Choice(), **options)


def test_an_output_folder_that_cannot_be_created_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"file/folder: Not a directory, expected a folder that you can write to"):
        collectives.run(CollectivesOptions(Choice(), output=str(tmp_path / "file" / "folder")))


def test_the_arguments_of_the_images_bench_follow_from_the_options() -> None:
    assert CollectivesOptions(Choice()).command == ("bench", "collectives", "--seconds=2")
    assert CollectivesOptions(Choice(), sizes="4K,25M", seconds=0.5).command[2:] == (
        "--seconds=0.5",
        "--sizes=4K,25M",
    )
