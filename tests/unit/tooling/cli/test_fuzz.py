"""Whatever is typed after ./inv, one line and exit code 2 come at once, or the task gets its options."""

import functools
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from pathlib import Path

import pytest

import tasks
from tests.unit.tooling.cli.program import run
from tooling.cli import options

_VALUES = (
    *("", "-", "--", "-1", "0", "1", "3", "1e99", "nan", "9" * 400, "\u0663", "\x1b]0;t\x07", "a\nb", "$(id)"),
    *("a$b", "\U0001f600", "x" * 5000, "/dev/null", "/", ".", "none", "node-0", "A=1", "RANK=3", "=", "1.5"),
    *("64g", "true", "https://u:p@h/x", "a@sha256:" + "0" * 64, "mpirun", "2.13", "torch=1", "--help", "%s{0}"),
)
_FLAGS = (
    "nodes",
    "name",
    "data",
    "output",
    "env",
    "memory",
    "image",
    "pin",
    "with",
    "set",
    "hosts",
    "port",
    "json",
)


def _words(chance: random.Random) -> list[str]:
    members = [member for section in tasks.SECTIONS.values() for member in section]
    groups = [member for member in members if hasattr(member, "task_names")]
    names = [[str(member.name)] for member in members]
    names += [[str(group.name), name] for group in groups for name in group.task_names]
    flags = [*(f"--{flag}" for flag in _FLAGS), "--no-such", "-h"]
    words = [*chance.choice(names)]
    for _ in range(chance.randrange(6)):
        flag, value = chance.choice(flags), chance.choice(_VALUES)
        words += chance.choice(([flag, value], [f"{flag}={value}"], [flag], [value], ["--", value]))
    return words


def _without_the_task(target: Callable[..., object], values: Mapping[str, object]) -> object:
    """Only the options of a task are made."""
    if not is_dataclass(target):
        target = functools.wraps(target)(lambda **_: None)
    return _CALL(target, values)


_CALL = options._call


@pytest.mark.timeout(120)
def test_no_arguments_end_in_a_traceback_or_take_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(options, "_call", _without_the_task)
    monkeypatch.chdir(tmp_path)
    for seed in range(int(os.environ.get("CTS_FUZZ", "300"))):
        words = _words(random.Random(seed))
        began = time.monotonic()
        try:
            code, _, err = run(tasks.SECTIONS, words, capsys)
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {words}") from error
        assert code in (0, 2), (seed, words, err)
        assert code == 0 or err.strip(), (seed, words)
        assert time.monotonic() - began < 10, (seed, words)
    assert [*tmp_path.iterdir()] == []
