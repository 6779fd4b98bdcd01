"""`./inv build --all`: a row that cannot be had is one line, and the next one is built all the same."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest
from invoke.exceptions import Exit

from tests import containers
from tooling import builds, locks, pins, wheels
from tooling.pins import Matrix

ROW = pins.load().pin()


@pytest.mark.timeout(120)
def test_rows_that_cannot_be_had_are_a_line_each_and_the_others_are_built(
    image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = containers.unique_name()
    packages = {"torch": ROW.packages["torch"]}
    dead = replace(ROW, name=name, own=True, packages=packages, build_packages={}, sources={})
    unlocked = replace(ROW, name="unlocked")
    matrix = Matrix(ROW.name, {pin.name: pin for pin in (unlocked, dead, ROW)})
    monkeypatch.setattr(pins, "load", lambda: matrix)
    monkeypatch.setattr(wheels, "WHEELS", tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    for variable in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{port}/simple")
    locks.OWN_LOCKS.mkdir(parents=True, exist_ok=True)
    locks.path_of(dead).write_text(f"torch=={packages['torch']} --hash=sha256:{'0' * 64}\n")
    locks.build_path_of(dead).write_text("")
    said: list[str] = []
    started = time.monotonic()
    try:
        with pytest.raises(Exit) as caught:
            builds.every("row", said.append)
    finally:
        locks.path_of(dead).unlink()
        locks.build_path_of(dead).unlink()
    assert time.monotonic() - started < 60
    assert caught.value.code == 1
    assert str(caught.value) == f"2 of 3 rows were not built: unlocked, {name}"
    told = {line.partition(":")[0]: line for line in said}
    assert "has no unlocked.txt: make it with ./inv lock --pin unlocked" in told["unlocked"]
    assert "the package index refuses connections: check network and proxy" in told[name]
    assert f"{image}: up to date" in said[-1]
