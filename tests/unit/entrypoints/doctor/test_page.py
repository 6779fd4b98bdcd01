"""The page of `doctor --html`."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpu_train_stack.cli.checks import Check, CheckStatus
from cpu_train_stack.doctor import main
from cpu_train_stack.page import checks as page

GOOD = Check("memory", CheckStatus.OK, "20 GB")
SLOW = Check("bf16", CheckStatus.WARNING, "emulated", "train without --bf16")
BROKEN = Check("shared memory", CheckStatus.ERROR, "64 MiB", "use --shm-size 8g")


@pytest.mark.parametrize(
    ("checks", "verdict", "state"),
    [
        ([GOOD], "No problems found", "finished"),
        ([GOOD, SLOW], "1 warning", ""),
        ([SLOW, SLOW, BROKEN], "1 error and 2 warnings", "failed"),
    ],
)
def test_the_verdict_counts_errors_and_warnings(checks: list[Check], verdict: str, state: str) -> None:
    found = page.page("This machine", checks, [])
    assert (found.verdict, found.state) == (verdict, state)


def test_errors_are_the_first_notices() -> None:
    found = page.page("This machine", [GOOD, SLOW, BROKEN], [])
    assert [(notice.title, list(notice.items), notice.level) for notice in found.notices] == [
        ("shared memory: 64 MiB", ["use --shm-size 8g"], "error"),
        ("bf16: emulated", ["train without --bf16"], "warning"),
    ]
    assert [section.name for section in found.sections] == ["checks"]


def test_the_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "doctor.html"
    main.main(["--quick", "--local-world-size", "2", "--html", str(file)])
    text = file.read_text(encoding="utf-8")
    assert "This container, with 2 ranks" in text
    assert '["launcher","ok","none: a single rank",""]' in text
    assert "launcher" in capsys.readouterr().out
