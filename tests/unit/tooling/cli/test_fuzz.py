"""For random arguments, `./inv` runs the task, or prints one line at once and exits with code 2."""

import functools
import random
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from pathlib import Path

import pytest

import tasks
from tests import fuzzing
from tests.unit.tooling.cli.program import run
from tooling.cli import options

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
    "no-such",
    "help",
)


def _words(chance: random.Random) -> list[str]:
    members = [member for section in tasks.SECTIONS.values() for member in section]
    groups = [member for member in members if hasattr(member, "task_names")]
    names = [[str(member.name)] for member in members]
    names += [[str(group.name), name] for group in groups for name in group.task_names]
    return fuzzing.words(chance, names, _FLAGS)


def _without_the_task(target: Callable[..., object], values: Mapping[str, object]) -> object:
    """Only the options of a task are made."""
    if not is_dataclass(target):
        target = functools.wraps(target)(lambda **_: None)
    return _CALL(target, values)


_CALL = options._call


@pytest.mark.timeout(600)
def test_no_arguments_end_in_a_traceback_or_take_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(options, "_call", _without_the_task)
    monkeypatch.chdir(tmp_path)
    for seed in fuzzing.cases(300):
        words = _words(random.Random(seed))
        with fuzzing.one_case(seed, words):
            code, _, err = run(tasks.SECTIONS, words, capsys)
            assert code in (0, 2), err
            assert code == 0 or err.strip()
    assert [*tmp_path.iterdir()] == []
