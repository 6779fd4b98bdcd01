"""The result of a command that cannot be printed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from cpu_train_stack.cli.say import show


def test_a_result_on_a_full_disk_ends_the_command_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit) as end:
            show("result")
        with Path(os.devnull).open("w") as nothing:  # for the text that is still in the buffer
            os.dup2(nothing.fileno(), full.fileno())
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("error: cannot write the result (No space left on device): ")
