"""The page of `plan --html`."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.machine.facts import Core, NumaNode
from cpu_train_stack.page.blocks import Drawing, Table, Texts
from cpu_train_stack.plan import command, page
from tests.unit.entrypoints.plan import rank_plans


def two_sockets() -> list[Core]:
    return [Core((core, core + 4), (core, core + 4), core // 2, core // 2) for core in range(4)]


def test_the_picture_shows_the_rank_of_each_core() -> None:
    nodes = (NumaNode(0, (0, 1, 4, 5), 64 << 30), NumaNode(1, (2, 3, 6, 7), 64 << 30))
    host = rank_plans.host(tuple(two_sockets()), nodes=nodes)
    plans = command.node(host, 2, {})
    found = page.page(plans[1], host, plans, command.facts(plans[1], host))
    assert found.verdict == "Plan: 2 ranks on this node"
    drawing, table = found.sections[0].blocks
    assert isinstance(drawing, Drawing)
    assert drawing.alternative == (
        "4 cores on 2 sockets and 2 NUMA nodes. Rank 0: CPUs 0-1,4-5. Rank 1: CPUs 2-3,6-7."
    )
    assert isinstance(table, Table)
    assert [row[:4] for row in table.rows] == [["0", "0-1,4-5", "0", "2"], ["1", "2-3,6-7", "1", "2"]]
    assert [section.title for section in found.sections] == ["Cores", "Rank 1", "Variables"]
    reasons = found.sections[1].blocks[1]
    assert isinstance(reasons, Texts)
    assert tuple(reasons.items) == plans[1].reasons


def test_without_ranks_there_are_only_cores() -> None:
    (drawing,) = page.drawings("This machine", rank_plans.host(rank_plans.cores(3)), [])
    assert drawing.alternative == "3 cores on 1 socket and 1 NUMA node."
    assert [shape.look for shape in drawing.shapes].count("core plain") == 3


def test_the_command_writes_the_page_and_prints_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.html"
    assert command.main(["--local-world-size", "2", "--html", str(file)]) == 0
    assert "\nrank 1 " in capsys.readouterr().out
    assert '"Plan: 2 ranks on this node"' in file.read_text(encoding="utf-8")


def test_a_page_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot write '.*': No such file or directory; name a file in a folder"):
        command.main(["--html", str(tmp_path / "none" / "plan.html")])
