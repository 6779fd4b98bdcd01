"""Messages, and the result of a command that cannot be printed."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from cpu_train_stack.cli.say import say, show


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


class Writes(io.RawIOBase):
    """Records each write."""

    def __init__(self) -> None:
        self.all: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self.all.append(bytes(data))
        return len(data)


def test_several_lines_are_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """A newline that is written separately would get its own prefix from mpirun."""
    raw = Writes()
    stream = io.TextIOWrapper(io.BufferedWriter(raw), line_buffering=True)
    monkeypatch.setattr(sys, "stderr", stream)
    say("ranks 2\npreloads libiomp5.so")
    assert raw.all == [b"ranks 2\npreloads libiomp5.so\n"]
