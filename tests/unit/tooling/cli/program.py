"""Runs ./inv's program in the process of the tests."""

import sys
from collections.abc import Mapping, Sequence

import pytest
from invoke.exceptions import Exit

from cpu_train_stack.cli.say import say
from tooling.cli import parser
from tooling.cli.parser import Member
from tooling.cli.process import guarded


def run(
    sections: Mapping[str, Sequence[Member]], argv: list[str], capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    code = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["inv", *argv])
        try:
            with guarded():
                parser.main(sys.argv, sections)
        except Exit as end:
            code = end.code
            if end.message:
                say(end.message)
    out, err = capsys.readouterr()
    return code, out, err
