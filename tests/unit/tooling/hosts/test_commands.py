"""Jobs on bare-metal hosts: the commands that run on the hosts, and their output."""

import io
import os
import shlex
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import locked
from tests.unit.tooling.hosts.host_jobs import job
from tooling.basis.identity import IDENTITY
from tooling.cli import tasks_clusters
from tooling.cluster import nodes
from tooling.cluster import run as cluster
from tooling.cluster import up as cluster_up
from tooling.cluster.compose import ClusterSpec
from tooling.cluster.nodes import Node
from tooling.engine.ssh import Done, Remote
from tooling.hosts import commands, launch, record
from tooling.hosts.job import Place, placeholder
from tooling.hosts.output import Output

PLACES = [
    Place("1001", "100", "/out", "1073741824", "sha256:0", f"10.0.0.{number}", f"eth{number}")
    for number in range(3)
]


_HOSTILE = (
    "'; touch found; '",
    '"; touch found; "',
    "$(touch found)",
    "`touch found`",
    "; touch found",
    "\ntouch found",
)
_ONE_VALUE = [
    *(commands.present_jobs, commands.image, commands.pull, commands.readable, commands.route, commands.resolve),
    *(commands.put_keys, commands.start, commands.logs, commands.wait, commands.state, commands.remove),
    *(
        commands.keep,
        lambda value: commands.writable(value, f"{value}:{value}"),
        lambda value: commands.connect("127.0.0.1", value),
    ),
    lambda value: commands.watch(value, terminal=False),
]


@pytest.mark.parametrize("make", _ONE_VALUE, ids=lambda make: make.__name__)
@pytest.mark.parametrize("value", _HOSTILE)
def test_a_value_in_a_command_stays_a_value(
    make: Callable[[str], str], value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("docker", "ip", "getent", "chown", "ls", "mkdir"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    (tmp_path / "here").mkdir()
    subprocess.run(
        ["sh", "-c", make(value)], cwd=tmp_path / "here", stdin=subprocess.DEVNULL, check=False, timeout=20
    )
    assert list((tmp_path / "here").iterdir()) == []


def words(command: str) -> list[str]:
    return shlex.split(command)


def test_a_torchrun_host_gets_its_node_rank_and_the_limits_of_a_local_node() -> None:
    argv = words(commands.create(job(data="/d", memory="4g"), 1, PLACES))
    assert argv[:3] == ["docker", "create", f"--name=cts-job-{IDENTITY}-one-1"]
    for option in (
        *("--network=host", "--user=1001:100", "--cap-drop=ALL", "--security-opt=no-new-privileges:true"),
        "--security-opt=label=disable",
        *("--shm-size=1073741824", "--memory=4g", "--memory-swap=4g", "--pull=never", "--env=HOME=/tmp"),
        *("--mount=type=bind,source=/d,target=/data,readonly", "--mount=type=bind,source=/out,target=/output"),
    ):
        assert option in argv
    at = argv.index("sha256:0")
    assert argv[at + 1 :] == [
        *("launch", "--nnodes=3", "--node-rank=1", "--master-addr=10.0.0.0", "--master-port=29500"),
        *("--nproc-per-node=2", "--", "train", "--x", "a b"),
    ]


def test_under_mpirun_the_first_host_launches_and_the_others_serve() -> None:
    mpi = job(launcher="mpirun", port=30000, env=("A=1", "TOKEN"), hub="/hub")
    first, second = words(commands.create(mpi, 0, PLACES)), words(commands.create(mpi, 1, PLACES))
    assert second[second.index("sha256:0") + 1 :] == ["sshd", "--port=30499"]
    assert "--hosts=10.0.0.0,10.0.0.1,10.0.0.2" in first
    assert {"--env=I_MPI_PORT_RANGE=30001:30498", "--env=I_MPI_HYDRA_IFACE=eth0"} < set(first)
    names = ["CPU_TRAIN_STACK_IMAGE", "CPU_TRAIN_STACK_GRACE_SECONDS", "HF_HOME", "A", "TOKEN"]
    assert [f"--env={name}" for name in names] == first[first.index("--") - len(names) : first.index("--")]
    assert not any("TOKEN" in word for word in second)


def test_a_forwarded_value_is_read_from_stdin_and_never_in_the_command() -> None:
    text = commands.create(job(env=("TOKEN", "A=1")), 0, PLACES)
    assert text.startswith("cat | docker create ")
    assert "--env-file=/dev/stdin" in words(text)
    assert "TOKEN" not in text, "a variable such as PATH must not change the shell that starts docker"


def test_every_host_has_its_own_key_and_only_the_first_can_log_in() -> None:
    archives = launch._keys(job(launcher="mpirun"), PLACES)
    found = []
    for archive in archives:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            members = {entry.name: entry for entry in tar}
            files = {name: tar.extractfile(entry) for name, entry in members.items()}
            found.append({name: file.read().decode() for name, file in files.items() if file})
            assert {entry.mode for name, entry in members.items() if name.startswith("run/keys/")} == {0o600}
            assert {entry.uid for name, entry in members.items() if name.startswith("run/keys")} == {1001}
    assert set(found[1]) == {"run/keys/ssh_host_ed25519_key", "run/keys/authorized_keys", "etc/passwd"}
    assert set(found[0]) == {*found[1], "run/keys/id_ed25519", "run/keys/known_hosts"}
    assert len({files["run/keys/ssh_host_ed25519_key"] for files in found}) == 3
    assert [line.split()[0] for line in found[0]["run/keys/known_hosts"].splitlines()] == [
        f"[10.0.0.{number}]:29999" for number in range(3)
    ]
    assert "trainer:x:1001:100:" in found[0]["etc/passwd"]


@pytest.mark.parametrize("image", [{"locked": True}, {"image": "host/mine:1"}], ids=["image lock", "image"])
def test_a_dry_run_shows_every_command_with_its_host(image: dict[str, Any]) -> None:
    shown = commands.dry_run(job(launcher="mpirun", **image), [placeholder(index, None) for index in range(3)])
    for text in (
        "docker version",
        "docker pull",
        "docker create",
        "docker cp",
        "docker start",
        "timeout 60 docker wait",
    ):
        assert [host for host, command in shown if command.startswith(text)] == ["alpha", "beta", "gamma"]
    assert ("gamma", commands.route("ADDRESS_0")) in shown


def test_a_name_means_the_running_job_else_the_latest_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "JOBS", tmp_path / "jobs")
    monkeypatch.setattr(cluster, "CLUSTERS", tmp_path / "clusters")
    assert tasks_clusters.find("one") is None
    left = record.of(job(), detached=True)
    record.write(left)
    assert tasks_clusters.find("one") == tasks_clusters.find(None) == left == record.read("one")
    ended = replace(left, exit_code=0)
    record.write(ended)
    assert tasks_clusters.find("one") == ended
    assert tasks_clusters.find(None) is None
    log = cluster.folder_of("one") / "log.txt"
    log.parent.mkdir(parents=True)
    log.touch()
    os.utime(log, (2**31, 2**31))
    assert tasks_clusters.find("one") is None
    with monkeypatch.context() as removed:
        removed.setattr(record, "read", lambda _name: ended)
        (record.folder_of("one") / "job.json").unlink()
        assert tasks_clusters.find("one") is None
        assert record.ended_at("one") == 0.0
    record.write(replace(left, detached=False))  # its ./inv launch was killed
    assert tasks_clusters.find(None) is None
    with locked(record.lock_of("one"), waiting=None):
        assert tasks_clusters.find(None) == replace(left, detached=False)


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int, bool], None]:
    """Records that a job or a cluster ended at a time. No cluster is running."""
    monkeypatch.setattr(record, "JOBS", tmp_path / "jobs")
    monkeypatch.setattr(cluster, "CLUSTERS", tmp_path / "clusters")
    monkeypatch.setattr(nodes, "of_checkout", lambda _name=None: [])

    def end(name: str, time: int, is_job: bool) -> None:
        folder = record.folder_of(name) if is_job else cluster.folder_of(name)
        folder.mkdir(parents=True)
        if is_job:
            record.write(replace(record.of(job(name=name), detached=False), exit_code=0))
        else:
            (folder / "compose.yaml").write_text("services: {}\n")
        (folder / "log.txt").write_text(f"the output of {name}\n")
        for file in folder.iterdir():
            os.utime(file, (time, time))

    return end


def test_logs_without_a_name_shows_what_ended_last(
    ended: Callable[[str, int, bool], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown() -> tuple[str, str]:
        tasks_clusters.logs.body()
        printed = capsys.readouterr()
        return printed.out, printed.err

    with pytest.raises(UsageError, match=r"expected one running cluster, found none: \./inv up starts one"):
        shown()
    ended("job-1", 100, True)
    assert shown() == ("the output of job-1\n", "")
    ended("cluster-1", 50, False)
    assert shown() == (
        "the output of job-1\n",
        "job-1 ended last; choose another one with --name: cluster-1\n",
    )
    ended("cluster-2", 200, False)
    said = "cluster-2 ended last; choose another one with --name: job-1, cluster-1\n"
    assert shown() == ("the output of cluster-2\n", said)
    (cluster.folder_of("cluster-3") / "compose.yaml").parent.mkdir()
    (cluster.folder_of("cluster-3") / "compose.yaml").touch()  # it did not start
    assert shown() == ("the output of cluster-2\n", said)
    with pytest.raises(UsageError, match=r"^cluster cluster-3 has no log, expected one after its end: it did not"):
        tasks_clusters.logs.body("cluster-3")
    capsys.readouterr()
    ended("job-2", 300, True)
    monkeypatch.setattr(nodes, "of_checkout", Mock(side_effect=UsageError("Docker does not answer")))
    assert shown()[0] == "the output of job-2\n"
    project = ClusterSpec("up-now", command=("true",)).project
    monkeypatch.setattr(nodes, "of_checkout", lambda _name=None: [Node("node-0", project, status="running")])
    printed = Mock()
    monkeypatch.setattr(cluster_up, "logs", printed)
    assert shown() == ("", "")
    printed.assert_called_once_with(None, False)


def test_watch_without_a_name_names_the_job_that_ended_last(
    ended: Callable[[str, int, bool], None], capsys: pytest.CaptureFixture[str]
) -> None:
    ended("cluster-1", 100, False)
    ended("job-1", 200, True)
    with pytest.raises(
        UsageError, match=r"^job job-1 has ended with exit code 0, expected a running job: \./inv logs"
    ):
        tasks_clusters.watch.body()
    assert capsys.readouterr().err == "job-1 ended last; choose another one with --name: cluster-1\n"
    ended("cluster-2", 300, False)
    with pytest.raises(UsageError, match=r"^cluster cluster-2 has no output folder to watch"):
        tasks_clusters.watch.body()


@pytest.mark.parametrize(
    ("mode", "own", "has_file", "fits"),
    [
        (None, True, False, True),
        (0o700, True, True, True),
        (0o777, False, True, True),
        (0o775, False, True, False),
        (0o776, False, True, False),
        (0o777, False, False, True),
    ],
    ids=["new", "of the owner", "open to all", "of others", "without search", "empty"],
)
def test_over_ssh_as_root_an_existing_folder_keeps_its_owner(
    tmp_path: Path, mode: int | None, own: bool, has_file: bool, fits: bool
) -> None:
    for name, script in {"id": "echo 0", "chown": f'echo "$@" >>{tmp_path}/changed'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    uid, gid = tmp_path.stat().st_uid, tmp_path.stat().st_gid
    owner = f"{uid}:{gid}" if own else f"{uid + 1}:{gid + 1}"
    folder = tmp_path / "its folder"
    if mode is not None:
        folder.mkdir()
        folder.chmod(mode)
    if has_file:
        (folder / "file").touch()
    argv = ["sh", "-c", commands.writable(str(folder), owner)]
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(argv, env={"PATH": path}, capture_output=True, text=True, check=False)
    refusal = f"uid {uid + 1} cannot write to it: choose another folder, or run chown {owner} '{folder}'\n"
    assert (done.returncode, done.stderr) == ((0, "") if fits else (1, refusal))
    assert folder.is_dir()
    assert (tmp_path / "changed").exists() == (mode is None or (uid == 0 and not has_file))


class _EndedHost(Remote):
    """A host whose containers have printed `lines` and ended."""

    def __init__(self, name: str, *lines: str) -> None:
        self.name, self._lines = name, lines

    def stream(self, command: str, lost: Callable[[], object] | None = None) -> Iterator[bytes]:
        yield "".join(f"{line}\n" for line in self._lines).encode()

    def run(self, command: str, stdin: bytes = b"", limit: float = 60.0) -> Done:
        return Done(0, '{"Status": "exited", "ExitCode": 0, "OOMKilled": false, "FinishedAt": ""}', "")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("failed", [False, True], ids=["well", "failed"])
def test_lines_of_rank_0_are_shown_at_once_and_others_at_the_end(tmp_path: Path, failed: bool) -> None:
    shown = io.BytesIO()
    output = Output(tmp_path / "log.txt", shown)
    output.read(_EndedHost("alpha", "[0] a", "[1] b", "plain"), "one", has_rank_0=True)
    while shown.getvalue() != b"alpha | [0] a\nalpha | plain\n":
        time.sleep(0.01)
    output.read(_EndedHost("beta", *"12345"), "two", has_rank_0=False)
    output.wait()
    output.close(failed)
    others = [b"beta | %d\n" % number for number in range(1 if failed else 3, 6)]
    assert shown.getvalue().splitlines(keepends=True)[2:] == [b"alpha | [1] b\n", *others]
    assert len((tmp_path / "log.txt").read_text().splitlines()) == 8


def test_after_a_failure_the_lines_of_progress_bars_are_complete(tmp_path: Path) -> None:
    shown = io.BytesIO()
    output = Output(tmp_path / "log.txt", shown)
    output.read(_EndedHost("beta", "0%\r50%\r100%\rValueError: x"), "one", has_rank_0=False)
    output.wait()
    output.close(failed=True)
    assert shown.getvalue() == b"beta | 0%\r50%\r100%\rValueError: x\n"


@pytest.mark.parametrize("failed", [False, True], ids=["well", "failed"])
def test_the_output_is_shown_although_the_disk_is_full(tmp_path: Path, failed: bool) -> None:
    (tmp_path / "log.txt").symlink_to("/dev/full")
    shown = io.BytesIO()
    output = Output(tmp_path / "log.txt", shown)
    output.read(_EndedHost("alpha", "1", "2"), "one", has_rank_0=True)
    output.read(_EndedHost("beta", "3"), "two", has_rank_0=False)
    output.wait()
    output.close(failed)
    assert shown.getvalue() == b"alpha | 1\nalpha | 2\nbeta | 3\n"
