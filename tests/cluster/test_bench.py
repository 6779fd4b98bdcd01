"""`./inv bench collectives` as a user calls it: in one container, then between two."""

import json
import struct
from pathlib import Path

import pytest

from tests.cluster.conftest import inv


def test_collectives_are_measured_at_both_places_and_shown(tmp_path: Path, image: str) -> None:
    command = ("bench", "collectives", "--json", "--sizes=4K,16M", "--seconds=0.1", f"--output={tmp_path}")
    done = inv(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    seen = {(row["where"], row["backend"], row["dtype"], row["bytes"]) for row in document["rows"]}
    assert seen == {
        (where, backend, dtype, size)
        for where in ("one-container", "two-containers")
        for backend in ("ccl", "gloo")
        for dtype in ("float32", "bfloat16")
        for size in (4 << 10, 16 << 20)
    }
    assert {(ceiling["where"], ceiling["what"], ceiling["bytes"]) for ceiling in document["ceilings"]} == {
        ("one-container", "memory-copy", 16 << 20),
        ("two-containers", "memory-copy", 16 << 20),
        ("two-containers", "tcp-one-way", None),
        ("two-containers", "tcp-both-ways", None),
    }
    for ceiling in document["ceilings"]:
        assert 0 < ceiling["gbytes_per_s"] < 1000
    for row in document["rows"]:
        assert (row["ranks"], row["collective"]) == (2, "all_reduce")
        assert row["ceiling"] == ("memory-copy" if row["where"] == "one-container" else "tcp-both-ways")
        assert (row["ceiling_share"] is not None) == (row["bytes"] == 16 << 20)
    assert len(document["speedups"]) == 8
    (written,) = tmp_path.glob("collectives-*.json")
    assert json.loads(written.read_text()) == document
    picture = written.with_suffix(".png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", picture[16:24])
    assert width > height > 600


def test_a_wrong_size_is_one_line_of_the_nodes_and_nothing_is_written(tmp_path: Path, image: str) -> None:
    done = inv("bench", "collectives", "--sizes=4X", f"--output={tmp_path}")
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == ""
    assert done.stderr.count("'4X' is not a size") == 1
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_step_is_measured_on_one_and_two_nodes_with_both_backends(tmp_path: Path, image: str) -> None:
    done = inv("bench", "scaling", "--json", "--nodes=1,2", "--seconds=1", "--ratio=2", f"--output={tmp_path}")
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    rows = {(row["nodes"], row["backend"]): row for row in document["rows"]}
    assert list(rows) == [(1, "none"), (2, "none"), (2, "ccl"), (2, "gloo")]
    assert rows[1, "none"]["efficiency"] == 1
    for row in rows.values():
        assert row["rounds"] >= 3
        assert row["samples_per_second"] == pytest.approx(
            document["batch"] * row["nodes"] / row["step_seconds"], rel=0.01
        )
    assert set(document["ratio"]["seen"]) == {"ccl", "gloo"}
    assert {(one["backend"], one["bytes"]) for one in document["all_reduce"]} == {
        (backend, size) for backend in ("ccl", "gloo") for size in (4096, document["gradient_bytes"])
    }
    (written,) = tmp_path.glob("scaling-*.json")
    assert json.loads(written.read_text()) == document
    assert written.with_suffix(".png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
