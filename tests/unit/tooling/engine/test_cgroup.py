"""Room for dockerd's cgroups in a container, on directories that have the kernel's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tooling.engine.cgroup import lacking_controllers, make_room


def nested(tmp_path: Path, *, given: str = "") -> Path:
    """What a container with a cgroup namespace of its own sees at /sys/fs/cgroup."""
    (tmp_path / "cgroup.type").write_text("domain\n")
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu memory pids\n")
    (tmp_path / "cgroup.subtree_control").write_text(given)
    (tmp_path / "cgroup.procs").write_text("1\n17\n")
    return tmp_path


def test_processes_are_moved_and_every_controller_is_given_to_the_children(tmp_path: Path) -> None:
    said: list[str] = []
    cgroup = nested(tmp_path)
    make_room(said.append, cgroup)
    assert (cgroup / "init" / "cgroup.procs").read_text() == "117"  # two writes, which the kernel takes one by one
    assert (cgroup / "cgroup.subtree_control").read_text() == "+cpuset +cpu +memory +pids"
    assert len(said) == 1


def test_only_controllers_that_are_not_given_yet_are_lacking(tmp_path: Path) -> None:
    assert lacking_controllers(nested(tmp_path, given="cpu pids\n")) == ("cpuset", "memory")


@pytest.mark.parametrize("kind", ["the kernel's root", "cgroup v1", "all given"])
def test_elsewhere_nothing_is_touched(tmp_path: Path, kind: str) -> None:
    cgroup = nested(tmp_path, given="cpuset cpu memory pids\n")
    if kind == "the kernel's root":
        (cgroup / "cgroup.type").unlink()
        (cgroup / "cgroup.subtree_control").write_text("")
    elif kind == "cgroup v1":
        for path in cgroup.iterdir():
            path.unlink()
    make_room(lambda line: pytest.fail(line), cgroup)
    assert not (cgroup / "init").exists()


def test_a_cgroup_that_may_not_be_changed_is_an_error_and_not_a_hang(tmp_path: Path) -> None:
    cgroup = nested(tmp_path)
    (cgroup / "init").write_text("a file where the child should be")
    with pytest.raises(OSError, match="init"):
        make_room(lambda _line: None, cgroup)
