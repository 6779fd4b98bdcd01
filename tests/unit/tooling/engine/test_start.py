"""dockerd without an init system: its log, its pid file, whether it was killed, and its cgroups."""

import os
from pathlib import Path

import pytest

from tooling.engine import start
from tooling.engine.start import give_controllers, is_stale, lacking_controllers, last_cause


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (
            'time="t" level=info msg="Starting up"\nfailed to start daemon: no space\n\n',
            "failed to start daemon: no space",
        ),
        ('time="t" level=fatal msg="cannot use \\"x\\" here" spam=1\n', 'cannot use "x" here'),
        ("\n", "no log was written"),
    ],
)
def test_dockerds_cause_is_its_last_line_without_decoration(log: str, cause: str) -> None:
    assert last_cause(log) == cause


@pytest.mark.parametrize(
    ("pid", "status", "stale"),
    [
        ("7", "Name:\tdockerd\nState:\tS (sleeping)\n", False),
        ("7", "Name:\tdockerd\nState:\tZ (zombie)\n", True),
        ("7", "Name:\tbash\nState:\tS (sleeping)\n", True),
        ("7", None, True),
        ("", None, True),
        (None, None, False),
    ],
    ids=["running", "zombie", "another program", "gone", "empty file", "no file"],
)
def test_a_pid_file_is_stale_unless_its_program_runs(
    tmp_path: Path, pid: str | None, status: str | None, stale: bool
) -> None:
    pid_file = tmp_path / "docker.pid"
    if pid is not None:
        pid_file.write_text(pid)
    if status is not None:
        (tmp_path / "7").mkdir()
        (tmp_path / "7" / "status").write_text(status)
    assert is_stale(pid_file, "dockerd", proc=tmp_path) is stale


def test_the_pid_file_of_a_running_process_is_not_stale(tmp_path: Path) -> None:
    pid_file = tmp_path / "own.pid"
    pid_file.write_text(str(os.getpid()))
    name = Path("/proc/self/comm").read_text().strip()
    assert not is_stale(pid_file, name)
    assert is_stale(pid_file, "dockerd")


@pytest.mark.parametrize(
    ("started", "pid_file", "killed"),
    [
        ("7", "7\n", True),
        (None, "7\n", False),
        ("6", "7\n", False),
        ("7", None, False),
        ("7", "8\n", False),
    ],
    ids=["killed", "never started one", "another checkout's", "stopped in good order", "a new one"],
)
def test_only_an_engine_of_this_checkout_that_left_its_pid_file_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: str | None, pid_file: str | None, killed: bool
) -> None:
    found = {"own": started, "docker.pid": pid_file}
    for name, text in found.items():
        if text is not None:
            (tmp_path / name).write_text(text)
    monkeypatch.setattr(start, "STARTED", tmp_path / "own")
    monkeypatch.setattr(start, "PID_FILES", {tmp_path / "docker.pid": "dockerd"})
    assert start.was_killed() is killed


def nested(tmp_path: Path, *, given: str = "") -> Path:
    """/sys/fs/cgroup in a container with a private cgroup namespace."""
    (tmp_path / "cgroup.type").write_text("domain\n")
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu memory pids\n")
    (tmp_path / "cgroup.subtree_control").write_text(given)
    (tmp_path / "cgroup.procs").write_text("1\n17\n")
    return tmp_path


def test_processes_are_moved_and_the_children_get_every_controller(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cgroup = nested(tmp_path)
    give_controllers(cgroup)
    assert (cgroup / "init" / "cgroup.procs").read_text() == "117"  # two writes, which the kernel takes one by one
    assert (cgroup / "cgroup.subtree_control").read_text() == "+cpuset +cpu +memory +pids"
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_only_controllers_that_the_children_do_not_have_are_lacking(tmp_path: Path) -> None:
    assert lacking_controllers(nested(tmp_path, given="cpu pids\n")) == ("cpuset", "memory")


@pytest.mark.parametrize("kind", ["the kernel's root", "cgroup v1", "all given"])
def test_outside_of_such_a_container_nothing_is_changed(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cgroup = nested(tmp_path, given="cpuset cpu memory pids\n")
    if kind == "the kernel's root":
        (cgroup / "cgroup.type").unlink()
        (cgroup / "cgroup.subtree_control").write_text("")
    elif kind == "cgroup v1":
        for path in cgroup.iterdir():
            path.unlink()
    give_controllers(cgroup)
    assert capsys.readouterr().err == ""
    assert not (cgroup / "init").exists()


def test_a_cgroup_that_cannot_be_changed_is_an_error(tmp_path: Path) -> None:
    cgroup = nested(tmp_path)
    (cgroup / "init").write_text("a file where the child should be")
    with pytest.raises(OSError, match="init"):
        give_controllers(cgroup)
