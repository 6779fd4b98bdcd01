"""The cleanup of /dev/shm before ccl starts."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = Path(__file__).parents[3] / "bindings" / "oneccl_bindings_for_pytorch" / "_shm.py"
NO_PROCESS = 2**22 + 1  # more than the largest process number


@pytest.fixture
def shm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The module, without its package, which needs torch. Its folder has two stale files of this user's number."""
    spec = importlib.util.spec_from_file_location("shm", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "DIRECTORY", tmp_path)
    for number in (1, 2):
        file = tmp_path / f"{NO_PROCESS}:{os.geteuid()}:{number}"
        file.touch()
        os.utime(file, (0, 0))
    return module


def left(folder: Path) -> list[str]:
    return sorted(file.name.rpartition(":")[2] for file in folder.iterdir())


def test_a_file_that_cannot_be_removed_stays_and_later_ones_are_removed(
    shm: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    unlink, tried = Path.unlink, []

    def refuse_first(file: Path) -> None:
        tried.append(file)
        if len(tried) == 1:
            raise PermissionError(1, "Operation not permitted", str(file))
        unlink(file)

    monkeypatch.setattr(Path, "unlink", refuse_first)
    shm._remove_stale()
    assert len(tried) == 2
    assert left(tmp_path) == [tried[0].name.rpartition(":")[2]]


def test_files_of_another_user_with_the_same_number_stay(
    shm: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The owner, as seen in a container whose users have other numbers on the host."""
    stat = Path.stat

    def of_another(file: Path, **options: bool) -> os.stat_result:
        found = list(stat(file, **options))
        if file.parent == tmp_path:
            found[4] = 65534
        return os.stat_result(found)

    monkeypatch.setattr(Path, "stat", of_another)
    shm._remove_stale()
    assert left(tmp_path) == ["1", "2"]


def test_an_unreadable_folder_is_left_alone(
    shm: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shm, "DIRECTORY", tmp_path / "missing")
    shm._remove_stale()
