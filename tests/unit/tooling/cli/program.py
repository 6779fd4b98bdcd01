"""Runs ./inv's program in the process of the tests."""

import sys

import pytest

from tooling.cli.parser import Member, TaskProgram


def run(
    sections: dict[str, list[Member]], argv: list[str], capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    code: int | str | None = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["inv", *argv])
        try:
            TaskProgram(sections).run(["inv", *argv])
        except SystemExit as end:
            code = end.code
    out, err = capsys.readouterr()
    assert isinstance(code, int)
    return code, out, err
