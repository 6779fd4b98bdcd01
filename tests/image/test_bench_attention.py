"""`./inv bench attention`: the measurement of short rows, and its table."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cpu_train_stack.machine import cpus
from tooling.bench import attention, runner
from tooling.cluster.spec import Mount
from tooling.engine import api

CASE = {"rows": 2, "heads": 12, "tokens": 64, "features": 32, "causal": False, "dropout": 0.1, "trains": True}


def test_both_kernels_are_measured_and_the_used_one_is_named(image: str, avx512: tuple[str, ...]) -> None:
    command = (*attention.COMMAND, "32", "256")
    container = runner.container(api.ensure(), image, "0-1")
    volumes = (volume.removeprefix("--volume=").split(":") for volume in avx512)
    added = (Mount(Path(source), target) for source, target, _ in volumes)
    report = runner.run(replace(container, mounts=(*container.mounts, *added)), command, "attention")
    bf16 = "avx512_bf16" if avx512 else cpus.read_model().bf16
    assert report["bf16_by"] == bf16
    assert [row["tokens"] for row in report["rows"]] == [16, 16, 16, 32, 32, 32]
    for row in report["rows"]:
        assert row["ours"] > 0
        assert row["torch"] > 0
        assert row["uses_ours"] == (row["dropout"] > 0 or bf16 != cpus.EMULATED)
    assert "16" in shown(report)


@pytest.mark.parametrize(
    ("ours", "uses_ours", "is_wrong"),
    [(0.020, True, False), (0.020, False, True), (0.031, True, False), (0.029, False, False), (0.034, True, True)],
)
def test_a_rule_is_wrong_if_the_other_kernel_is_clearly_faster(
    ours: float, uses_ours: bool, is_wrong: bool
) -> None:
    row = {**CASE, "ours": ours, "torch": 0.030, "uses_ours": uses_ours}
    assert attention.slower_is_used(row) is is_wrong
    output = shown({"bf16_by": "amx_bf16", "cpu": "a CPU", "threads": 2, "rows": [row]})
    assert "2 x 12 x 64 x 32" in output
    assert ("the slower one" in output) is is_wrong


def shown(document: dict[str, Any]) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(attention.table(document))
    return capture.get()
