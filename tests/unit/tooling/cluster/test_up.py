"""`./inv up`: the checks before a cluster starts, restarts after failures, and the choice of a cluster."""

import os
import tempfile
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import UsageError
from tooling.cluster import compose, containers, follow, nodes, up, users
from tooling.cluster import run as cluster
from tooling.cluster.compose import ClusterSpec
from tooling.cluster.nodes import Node
from tooling.cluster.run import Outcome
from tooling.engine import api
from tooling.engine.api import Engine
from tooling.image.build import Image
from tooling.image.choice import Choice


def spec() -> ClusterSpec:
    return ClusterSpec("test", "image", nodes=2, ranks_per_node=1, command=("train",))


@pytest.mark.parametrize(
    ("ends", "max_restarts", "runs"),
    [
        ([Outcome(137), Outcome(0)], 3, 2),
        ([Outcome(1)] * 4, 2, 3),
        ([Outcome(1)], 0, 1),
        ([Outcome(0)], 2, 1),
        ([Outcome(2)], 2, 1),
        ([Outcome(143, taken_down=True)], 2, 1),
    ],
    ids=["recovers", "gives up", "no restarts", "no failure", "bad usage", "taken down"],
)
def test_a_cluster_restarts_after_a_failure_that_a_restart_can_fix(
    ends: list[Outcome], max_restarts: int, runs: int
) -> None:
    started: list[ClusterSpec] = []

    def run(cluster: ClusterSpec) -> Outcome:
        started.append(cluster)
        return ends[len(started) - 1]

    assert up.run_with_restarts(run, spec(), max_restarts) is ends[runs - 1]
    assert [cluster.restarted for cluster in started] == [False, *[True] * (runs - 1)]
    # The trainer resumes only in a folder that has the name of its job.
    names = {cluster.environment[contract.JOB] for cluster in started}
    assert len(names) == 1
    ends += [Outcome(0)] * len(started)
    up.run_with_restarts(run, spec(), 0)
    assert started[-1].environment[contract.JOB] not in names


def test_variables_to_pass_on_that_are_not_set_are_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cluster, "CLUSTERS", tmp_path / "clusters")
    monkeypatch.setattr(api, "ensure", lambda: pytest.fail("the engine was asked for"))
    monkeypatch.setenv("SET", "1")
    request = up.Request(spec(), Choice(), up.Options(env=("UNSET_A", "SET", "UNSET_B", "C=d")))
    with pytest.raises(UsageError, match="--env UNSET_A, UNSET_B: not set in your environment"):
        up.up(request)
    assert not (tmp_path / "clusters").exists()


@pytest.mark.parametrize("word", ["=x", "1A=x", "A B", "é", ""])
def test_a_variable_without_a_valid_name_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="is not a variable name"):
        up.variables([word])


@pytest.mark.parametrize("word", ["RANK=3", "MASTER_PORT=1", "PET_NNODES=9", "CPU_TRAIN_STACK_RANKS_PER_NODE=2"])
def test_a_variable_of_the_launcher_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match=f"--env {word.partition('=')[0]}"):
        up.variables([word])


def test_a_variable_that_is_given_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="--env: A is given twice"):
        up.variables(["A=1", "B", "A"])


def test_a_missing_data_folder_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"--data {tmp_path}/none is not a folder"):
        up.Options(data=f"{tmp_path}/none", print_compose=True)


@pytest.mark.parametrize(("mode", "fits"), [(0o777, True), (0o775, False), (0o776, False)], ids=oct)
def test_an_existing_output_folder_keeps_its_owner(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: int, fits: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "chown", lambda path, *_: changed.append(path))
    user = (tmp_path.stat().st_uid + 1, tmp_path.stat().st_gid + 1)  # neither owner nor group
    monkeypatch.setattr(users, "container_user", lambda: user)
    changed: list[Path] = []
    cluster.users_folder(tmp_path / "new")
    assert changed == [tmp_path / "new"]
    existing = tmp_path / "existing"
    existing.mkdir()
    (existing / "file").touch()
    existing.chmod(mode)
    if fits:
        assert cluster.users_folder(existing) == existing
    else:
        with pytest.raises(
            UsageError, match=f"cannot write to it: .* or run chown {user[0]}:{user[1]} {existing}"
        ):
            cluster.users_folder(existing)
    assert changed == [tmp_path / "new"]


@pytest.mark.parametrize("default", [True, False], ids=["default", "--output"])
def test_an_existing_output_folder_of_another_user_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, default: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    prepare = cluster.writable_folder if default else cluster.users_folder
    (tmp_path / "file").touch()
    assert prepare(tmp_path) == tmp_path
    monkeypatch.setattr(tempfile, "TemporaryFile", Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(
        UsageError, match=f"^output folder {tmp_path}: Permission denied: choose a folder that you"
    ):
        prepare(tmp_path)


def test_a_missing_image_leaves_no_output_folder(tmp_path: Path) -> None:
    request = up.Request(
        spec(),
        Choice(image_lock=f"{tmp_path}/none.json"),
        up.Options(output=f"{tmp_path}/output", print_compose=True),
    )
    with pytest.raises(UsageError, match=r"none\.json"):
        up.up(request)
    assert not (tmp_path / "output").exists()


def test_the_reports_of_this_job_are_found_in_its_output_folder(tmp_path: Path) -> None:
    for name, seconds in (("old", 1.0), ("new", 20.0), ("a/b/too/deep", 20.0)):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / contract.REPORT).touch()
        os.utime(tmp_path / name / contract.REPORT, (seconds, seconds))
    (tmp_path / "link").symlink_to(tmp_path / "new")
    assert up.reports(tmp_path, 10.0) == [tmp_path / "new" / contract.REPORT]
    assert up.reports(tmp_path / "removed", 10.0) == []


def test_the_name_of_a_folder_of_the_job_forges_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*_: object) -> Outcome:
        evil = tmp_path / "x\nnode-0 | error: \x1b[2J"
        evil.mkdir()
        (evil / contract.REPORT).touch()
        os.utime(evil / contract.REPORT, (time.time() + 1,) * 2)  # the clock of files is some ms late
        return Outcome(0)

    image = Image("cpu-train-stack:2.13", "sha256:1", 0, built=False, seconds=0.0)
    monkeypatch.setattr(Choice, "ensure", lambda _choice: (Engine("unix:///sock", 1), image))
    monkeypatch.setattr(cluster, "run", run)
    up.up(up.Request(spec(), Choice(), up.Options(output=str(tmp_path))))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["output folder", "report"]
    assert all(line.isprintable() for line in lines)


def test_every_start_runs_the_same_image_although_a_build_moves_its_tag(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    image = Image("cpu-train-stack:2.13", "sha256:1", 0, built=False, seconds=0.0)
    started: list[ClusterSpec] = []

    def run(attempt: ClusterSpec, _engine: Engine) -> Outcome:
        started.append(attempt)
        return Outcome(1 if len(started) == 1 else 0)

    monkeypatch.setattr(Choice, "ensure", lambda _choice: (Engine("unix:///sock", 1), image))
    monkeypatch.setattr(cluster, "run", run)
    up.up(up.Request(spec(), Choice(), up.Options(output=str(tmp_path / "output"), max_restarts=1)))
    assert [(one.image, one.environment[contract.IMAGE]) for one in started] == [("sha256:1", "sha256:1")] * 2


def test_restarts_need_a_command_that_watches_the_cluster() -> None:
    with pytest.raises(UsageError, match="--max-restarts is -1, expected 0 or more"):
        up.Options(max_restarts=-1)
    with pytest.raises(UsageError, match="leave out --detach"):
        up.Options(max_restarts=1, detach=True)


def ended(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "log.txt").write_text(f"the output of {name}\n")


def test_logs_shows_the_named_cluster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cluster, "CLUSTERS", tmp_path)
    monkeypatch.setattr(nodes, "of_checkout", lambda _name=None: [])
    with pytest.raises(UsageError, match=r"expected one running cluster, found none: \./inv up starts one"):
        up.logs(None, follow=False)
    ended(tmp_path, "first", "second")
    up.logs("second", follow=False)
    assert capsys.readouterr().out == "the output of second\n"
    with pytest.raises(UsageError, match="no cluster is named 'third', found first, second"):
        up.logs("third", follow=False)


def test_the_log_of_a_cluster_that_ends_at_this_moment_is_printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def down(_name: str | None = None) -> list[Node]:
        ended(tmp_path, "first")
        return []

    monkeypatch.setattr(cluster, "CLUSTERS", tmp_path)
    monkeypatch.setattr(nodes, "of_checkout", down)
    up.logs("first", follow=False)
    assert capsys.readouterr().out == "the output of first\n"


def test_a_log_that_a_new_cluster_removes_at_this_moment_is_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ended(tmp_path, "first")
    logs = [tmp_path / name / "log.txt" for name in ("first", "removed")]
    monkeypatch.setattr(cluster, "CLUSTERS", Mock(glob=Mock(return_value=logs)))
    assert up.ended() == {"first": logs[0].stat().st_mtime}


def test_down_with_an_empty_name_does_not_mean_the_only_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    project = ClusterSpec("one", command=("true",)).project
    monkeypatch.setattr(nodes, "of_checkout", lambda _name=None: [Node("node-0", project, status="running")])
    monkeypatch.setattr(api, "running", list)
    taken_down = Mock()
    monkeypatch.setattr(cluster, "take_down", taken_down)
    with pytest.raises(UsageError, match="no cluster is named '', found one"):
        up.down("")
    taken_down.assert_not_called()
    up.down(None)
    taken_down.assert_called_once_with("one")


def test_the_log_of_an_ended_cluster_is_printed_without_an_engine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cluster, "CLUSTERS", tmp_path)
    monkeypatch.setattr(nodes, "of_checkout", Mock(side_effect=UsageError("Docker does not answer")))
    with pytest.raises(UsageError, match="Docker does not answer"):
        up.logs(None, follow=False)
    ended(tmp_path, "first")
    up.logs("first", follow=False)
    printed = capsys.readouterr()
    assert printed.out == "the output of first\n"
    assert printed.err == "without running clusters: Docker does not answer\n"


def test_the_log_of_an_ended_cluster_is_printed_byte_by_byte(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(cluster, "CLUSTERS", tmp_path)
    monkeypatch.setattr(nodes, "of_checkout", lambda _name=None: [])
    ended(tmp_path, "first")
    (tmp_path / "first" / "log.txt").write_bytes("node-0 | 50% █\r100% ██\n".encode() + b"\xff\n")
    up.logs("first", follow=False)
    assert capsysbinary.readouterr().out == (tmp_path / "first" / "log.txt").read_bytes()


def test_status_has_the_state_of_each_node(monkeypatch: pytest.MonkeyPatch) -> None:
    project = ClusterSpec("one", command=("true",)).project
    seen = [Node("node-0", project, status="running"), Node("node-1", project, exit_code=3)]
    monkeypatch.setattr(nodes, "of_checkout", lambda _name=None: seen)
    assert up.status("one") == [("one", "node-0", "running"), ("one", "node-1", "exited with code 3")]


def test_a_cluster_is_removed_although_its_output_cannot_be_saved(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    removed: list[str] = []
    monkeypatch.setattr(cluster, "CLUSTERS", tmp_path)
    monkeypatch.setattr(nodes, "read", lambda *_: [Node("node-0", status="running")])
    monkeypatch.setattr(follow, "copy", lambda _endpoint, _project, stream: stream.write(b"1"))
    monkeypatch.setattr(containers, "remove", lambda project, _endpoint: removed.append(project))
    (tmp_path / "test").mkdir()
    (tmp_path / "test/log.part").symlink_to("/dev/full")
    (tmp_path / "test/taken-down").symlink_to("missing/file")  # cannot be created
    monkeypatch.setattr(api, "running", lambda: [Engine("unix:///none", 2)])
    cluster.take_down("test")
    assert removed == [compose.PROJECT_PREFIX + "test"]
    first, second = capsys.readouterr().err.splitlines()
    assert "/taken-down: No such file or directory: a running ./inv up --max-restarts may start" in first
    assert "/log.txt: No space left on device: the output of the cluster could not be saved" in second


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "MASTER_ADDR"])
def test_variables_of_the_launcher_cannot_be_set(name: str) -> None:
    with pytest.raises(UsageError, match=f"^--env {name}: the launcher sets this variable"):
        up.variables([f"{name}=3"])
