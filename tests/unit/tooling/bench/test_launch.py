"""`./inv bench launch`: the launchers, the ratios and the table."""

import subprocess
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from invoke.exceptions import Exit
from rich.console import Console

from cpu_train_stack.cli.errors import UsageError
from tooling.basis.paths import ROOT
from tooling.bench import launch, report
from tooling.bench.runner import Container
from tooling.engine.api import Engine
from tooling.image.build import Image
from tooling.image.choice import Choice


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


def test_every_launcher_runs_the_same_script_with_the_ranks_in_its_name() -> None:
    launchers = launch.launchers(4)
    assert len({launcher.name for launcher in launchers}) == 5
    for launcher in launchers:
        assert launcher.command[-1] == launch.SCRIPT
        assert ("4 ranks" in launcher.name) is ("--nproc-per-node=4" in launcher.command)
    assert [launcher.name for launcher in launchers if launcher.is_baseline] == [
        "torchrun, 4 ranks",
        "run_cpu, 1 rank",
    ]


def test_a_ratio_is_the_median_of_the_ratios_of_all_rounds() -> None:
    rows = {row["way"]: row for row in launch.rows(launch.launchers(2), FOUND)}
    to = {name: row["ratio_to"]["torchrun, 2 ranks"] for name, row in rows.items()}
    assert to["torchrun, 2 ranks"] == 1.0
    assert to["launch, 2 ranks, gloo"] == 1.5  # of 1.5, 1.2 and 2
    assert to["launch, 2 ranks, ccl"] == 2.0  # of 1, 2 and 3; that of the medians is 1.5
    assert rows["run, 1 rank"]["ratio_to"]["run_cpu, 1 rank"] == 1.0
    assert rows["launch, 2 ranks, gloo"]["samples_per_second"] == 15
    assert rows["launch, 2 ranks, gloo"]["samples_per_second_rounds"] == [15, 24, 10]


def test_the_table_has_a_column_for_each_baseline() -> None:
    out = StringIO()
    Console(file=out, width=200).print(launch.table({"rows": launch.rows(launch.launchers(2), FOUND)}))
    assert "vs. torchrun, 2 ranks" in out.getvalue()
    assert "vs. run_cpu, 1 rank" in out.getvalue()
    assert "10 to 24" in out.getvalue()


@pytest.mark.parametrize(
    "options",
    [{"ranks": 1}, {"ranks": launch.BATCH + 1}, {"rounds": 0}, {"steps": 0}, {"steps": -5}],
    ids=lambda options: " ".join(f"--{name} {value}" for name, value in options.items()),
)
def test_numbers_that_cannot_be_measured_are_refused(options: dict[str, Any]) -> None:
    found = " ".join(f"--{name} {value}" for name, value in options.items())
    with pytest.raises(
        UsageError, match=f"{found}.*, expected 2 to 16 ranks, 1 to [0-9]+ rounds, 1 to [0-9]+ steps"
    ):
        launch.StartOptions(Choice(), **options)


def test_the_largest_number_of_ranks_is_the_scripts_batch() -> None:
    script = (ROOT / "examples" / "throughput.py").read_text()
    assert f'"--batch", type=int, default={launch.BATCH},' in script


def test_a_loop_that_does_not_end_is_reported_by_its_launcher(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def hang(_container: Container, command: Sequence[str], limit_seconds: float) -> None:
        raise subprocess.TimeoutExpired(command, limit_seconds)

    image = Image("cpu-train-stack:2.13", "sha256:1", 0, built=False, seconds=0.0)
    monkeypatch.setattr(Choice, "ensure", lambda _choice: (Engine("unix:///docker", 2), image))
    monkeypatch.setattr(report, "FOLDER", tmp_path)
    monkeypatch.setattr(Container, "run", hang)
    with pytest.raises(Exit, match=r"^bench failed: torchrun, 2 ranks: did not end within 1800 s$") as failure:
        launch.run(launch.StartOptions(Choice()))
    assert failure.value.code == 1
