"""`./inv bench collectives`: the document, the table and the picture."""

import struct
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tooling.basis.errors import UsageError
from tooling.bench import collectives, collectives_report, plots
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
    return {
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


@pytest.fixture
def merged() -> dict[str, Any]:
    facts = {"date": "2026-01-02T03:04:05+00:00", "image": "sha256:1", "cpus": 2}
    return collectives_report.merge([document("one-container"), document("two-containers")], facts)


def test_a_merged_document_has_every_row_and_ceiling_and_the_environment(merged: dict[str, Any]) -> None:
    assert [entry["where"] for entry in merged["rows"]] == ["one-container"] * 8 + ["two-containers"] * 8
    assert [entry["what"] for entry in merged["ceilings"]] == ["memory-copy"] * 2 + [
        "tcp-one-way",
        "tcp-both-ways",
    ]
    assert (merged["pin"], merged["cpu"], merged["image"]) == ("2.13", "A processor", "sha256:1")
    assert merged["environment"].keys() == {"one-container", "two-containers"}


def test_a_speedup_is_for_the_same_case_at_the_same_place() -> None:
    rows = [
        row("one-container", "gloo", 4096, 2000.0),
        row("one-container", "ccl", 4096, 10.0),
        row("one-container", "ccl", 25 * MIB, 10.0),
        row("two-containers", "ccl", 4096, 40.0),
        row("two-containers", "gloo", 4096, 1000.0),
    ]
    found = [(entry["where"], entry["bytes"], entry["speedup"]) for entry in collectives_report.speedups(rows)]
    assert found == [("one-container", 4096, 200.0), ("two-containers", 4096, 25.0)]


def printed(merged: dict[str, Any], width: int = 80) -> list[str]:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(collectives_report.table(merged))
    return capture.get().splitlines()


def test_the_table_fits_a_narrow_terminal(merged: dict[str, Any]) -> None:
    lines = printed(merged)
    assert max(len(line.rstrip()) for line in lines) <= 80
    assert "…" not in "".join(lines)
    (line,) = [line for line in lines[: len(lines) // 2] if "fp32" in line and "4 KiB" in line]
    assert line.split() == ["all_reduce", "fp32", "4", "KiB", "10.0", "2,000.0", "200.0x", "0.41"]
    assert any("memory-copy of 25 MiB 14.0" in line for line in lines)
    assert any("ceilings, GB/s: tcp-one-way 1.5, tcp-both-ways 1.1" in line for line in lines)


def test_an_image_with_one_backend_has_a_table_without_comparison() -> None:
    facts = {"date": "2026-01-02", "image": "", "cpus": 2}
    lines = printed(collectives_report.merge([document("one-container", ("gloo",))], facts))
    assert "is" not in lines[1].split()
    assert "GB/s" in lines[1]


def test_the_rows_of_a_curve_are_sorted_by_size(merged: dict[str, Any]) -> None:
    merged["rows"].reverse()
    curves = collectives_report.curves(merged, "one-container", "all_reduce")
    assert set(curves) == {
        ("ccl", "float32"),
        ("ccl", "bfloat16"),
        ("gloo", "float32"),
        ("gloo", "bfloat16"),
    }
    for curve in curves.values():
        assert [row["bytes"] for row in curve] == [4096, 25 * MIB]
    assert collectives_report.curves(merged, "one-container", "broadcast") == {}


def test_ceilings_are_curves_over_the_sizes_in_the_picture(merged: dict[str, Any]) -> None:
    one = plots.ceilings(merged, "one-container", "all_reduce")
    assert one == [("memory copy of one core: 14", [(25 * MIB, 14.0)])]
    two = plots.ceilings(merged, "two-containers", "all_reduce")
    assert [curve for _name, curve in two] == [
        [(4096, 1.5), (25 * MIB, 1.5)],
        [(4096, 1.1), (25 * MIB, 1.1)],
    ]


def test_the_picture_has_a_column_for_each_place(merged: dict[str, Any], tmp_path: Path) -> None:
    plots.collectives(merged, tmp_path / "both.png", "all_reduce")
    alone = collectives_report.merge([document("one-container")], {"date": "2026-01-02", "image": "", "cpus": 2})
    plots.collectives(alone, tmp_path / "one.png", "all_reduce")
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
        pytest.param({"nodes": 0}, "--nodes is 0, expected 2 or more, or 1", id="nodes"),
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
        collectives.collectives(CollectivesOptions(Choice(), output=str(tmp_path / "file" / "folder")))


def test_the_arguments_of_the_images_bench_follow_from_the_options() -> None:
    assert CollectivesOptions(Choice()).command == ("bench", "collectives", "--seconds=2")
    assert CollectivesOptions(Choice(), sizes="4K,25M", seconds=0.5).command[2:] == (
        "--seconds=0.5",
        "--sizes=4K,25M",
    )
