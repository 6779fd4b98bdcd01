"""What is found of Docker, what is decided from it, and the exact commands that follow."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tooling import engine_start
from tooling.apt_sources import APT, Source
from tooling.engine_find import (
    EngineFacts,
    Findings,
    find,
    parse_buildkit,
    parse_engine,
    parse_plugins,
    version_tuple,
)
from tooling.engine_install import UPDATE, apt_cause, apt_files, install_argv, parse_candidate
from tooling.engine_plan import Plan, buildkit_is_enough, debian_packages, decide, install_command
from tooling.engine_start import is_stale, last_cause
from tooling.errors import UsageError
from tooling.host import Host, host_from, parse_os_release, read_host

BOOKWORM = Host("debian", 12, "Debian GNU/Linux 12 (bookworm)", root=True, systemd=False)
FACTS = EngineFacts("26.1.5+dfsg1", "1.45", "/var/lib/docker", 2, "overlay2", 2, 8_000_000_000)
NOTHING = Findings(problem="no such file")
COMPLETE = Findings(
    engine=FACTS,
    buildkit="v0.0.0+unknown",
    client="26.1.5+dfsg1",
    compose="2.26.1-4",
    buildx="0.13.1+ds1",
    dockerd="Docker version 26.1.5+dfsg1, build 411e817",
    mmdebstrap="/usr/bin/mmdebstrap",
)
STOPPED = replace(COMPLETE, engine=None, buildkit=None, problem="Cannot connect to the Docker daemon")
POLICY = "docker.io:\n  Installed: (none)\n  Candidate: {}\n  Version table:\n"
MIRROR = Source(("deb",), ("http://mirror.example/debian",), ("bookworm",), ("main",))


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("26.1.5+dfsg1", (26, 1, 5)),
        ("v2.26.1-4", (2, 26, 1)),
        ("0.13.1+ds1", (0, 13, 1)),
        ("v0.0.0+unknown", (0, 0, 0)),
        ("Docker version 20.10.24+dfsg1, build 297e128", (20, 10, 24)),
        ("unknown", ()),
        ("", ()),
        (None, ()),
    ],
)
def test_a_version_is_read_whatever_a_distribution_adds_to_it(text: str | None, numbers: tuple[int, ...]) -> None:
    assert version_tuple(text) == numbers


def test_an_engines_info_becomes_facts() -> None:
    info = {
        "ServerVersion": "26.1.5+dfsg1",
        "DockerRootDir": "/var/lib/docker",
        "CgroupVersion": "2",
        "Driver": "overlay2",
        "NCPU": 2,
        "MemTotal": 8_000_000_000,
    }
    assert parse_engine(info, "1.45") == FACTS


@pytest.mark.parametrize("info", [{}, {"ServerVersion": "", "NCPU": 0}], ids=["nothing", "the client's zeros"])
def test_no_answer_is_no_engine(info: dict[str, Any]) -> None:
    assert parse_engine(info, "") is None


def test_plugins_are_found_and_broken_ones_are_not() -> None:
    info = {
        "ClientInfo": {
            "Plugins": [
                {"Name": "buildx", "Version": "0.13.1+ds1"},
                {"Name": "compose", "Version": "2.26.1-4", "Err": "plugin candidate is not executable"},
            ]
        }
    }
    assert parse_plugins(info) == {"buildx": "0.13.1+ds1"}
    assert parse_plugins({"ClientInfo": {"Plugins": None}}) == {}


@pytest.mark.parametrize(
    ("text", "buildkit"),
    [
        ("Name:          default\nNodes:\nBuildKit version: v0.0.0+unknown\nLabels:\n", "v0.0.0+unknown"),
        ("Nodes:\nBuildkit:  v0.12.5\n", "v0.12.5"),
        ("Labels:\n org.mobyproject.buildkit.worker.moby.host-gateway-ip: 172.17.0.1\n", None),
    ],
    ids=["Debian's", "an older buildx's", "none"],
)
def test_buildkits_version_is_read_from_buildx(text: str, buildkit: str | None) -> None:
    assert parse_buildkit(text) == buildkit


@pytest.mark.parametrize(
    ("buildkit", "engine", "enough"),
    [
        ("v0.12.0", "25.0.0", True),
        ("v0.11.6", "26.1.5", False),
        ("v0.0.0+unknown", "25.0.0", True),
        ("v0.0.0+unknown", "24.0.9", False),
        (None, "26.1.5+dfsg1", True),
        (None, "Docker version 20.10.24+dfsg1, build 297e128", False),
    ],
)
def test_buildkit_counts_by_its_own_version_or_else_by_the_engines(
    buildkit: str | None, engine: str, enough: bool
) -> None:
    assert buildkit_is_enough(buildkit, engine) is enough


def test_a_dead_address_chosen_by_the_user_is_found_as_such_and_nothing_hangs() -> None:
    found = find({"PATH": os.environ["PATH"], "DOCKER_HOST": "tcp://127.0.0.1:9"})
    assert (found.engine, found.chosen_by, found.endpoint) == (None, "DOCKER_HOST", "tcp://127.0.0.1:9")
    assert found.problem


def test_without_a_client_the_socket_itself_is_asked() -> None:
    found = find({"PATH": "/nonexistent", "DOCKER_HOST": "unix:///nonexistent.sock"})
    assert (found.client, found.engine) == (None, None)
    assert found.problem
    assert "\n" not in found.problem


def test_where_all_is_there_nothing_is_done() -> None:
    assert decide(COMPLETE, BOOKWORM).nothing
    assert decide(COMPLETE, replace(BOOKWORM, root=False, os_id="fedora")).nothing


@pytest.mark.parametrize(
    ("findings", "plan"),
    [
        (
            NOTHING,
            Plan(("docker.io", "docker-cli", "docker-compose", "docker-buildx", "mmdebstrap"), start=True),
        ),
        (
            replace(NOTHING, client="28.2.2", mmdebstrap="/usr/bin/mmdebstrap"),
            Plan(("docker.io", "docker-compose", "docker-buildx"), start=True),
        ),
        (replace(COMPLETE, compose=None), Plan(("docker-compose",))),
        (replace(COMPLETE, compose="1.29.2"), Plan(("docker-compose",))),
        (replace(COMPLETE, buildx=None, buildkit=None, mmdebstrap=None), Plan(("docker-buildx", "mmdebstrap"))),
        (replace(COMPLETE, client=None, compose=None), Plan(("docker-cli", "docker-compose"))),
        (replace(COMPLETE, mmdebstrap=None), Plan()),
        (STOPPED, Plan(start=True)),
    ],
    ids=["bare", "static client", "compose", "compose v1", "buildx", "mounted socket", "mmdebstrap", "stopped"],
)
def test_as_root_on_debian_exactly_what_is_missing_is_installed_and_started(
    findings: Findings, plan: Plan
) -> None:
    assert decide(findings, BOOKWORM) == plan


def test_certificates_are_installed_with_an_engine_only_where_there_are_none() -> None:
    bare = replace(BOOKWORM, ca_certificates=False)
    assert debian_packages(NOTHING, bare)[-1] == "ca-certificates"
    assert "ca-certificates" not in debian_packages(NOTHING, BOOKWORM)
    assert "ca-certificates" not in debian_packages(replace(COMPLETE, compose=None), bare)


USER = replace(BOOKWORM, root=False)


@pytest.mark.parametrize(
    ("findings", "host", "expected"),
    [
        (NOTHING, USER, "curl -fsSL https://get.docker.com | sudo sh"),
        (NOTHING, replace(BOOKWORM, version=11, name="Debian 11"), "not found on Debian 11; to install: curl"),
        (
            NOTHING,
            replace(USER, version=13),
            "sudo apt-get install docker.io docker-cli docker-compose docker-buildx",
        ),
        (NOTHING, replace(BOOKWORM, os_id="ubuntu", version=24), "docker.io docker-buildx docker-compose-v2"),
        (NOTHING, replace(BOOKWORM, os_id="plan9", version=None), "https://docs.docker.com/engine/install/"),
        (NOTHING, replace(BOOKWORM, os_id="darwin", version=None), "Docker Desktop"),
        (replace(COMPLETE, buildx=None), USER, "buildx >= 0.8 not found"),
        (replace(COMPLETE, compose=None), replace(BOOKWORM, docker_ce=True), "install docker-buildx-plugin"),
        (STOPPED, USER, "does not run; to start it: sudo sh -c 'dockerd"),
        (STOPPED, replace(USER, systemd=True), "does not run; to start it: sudo systemctl start docker"),
        (
            replace(STOPPED, problem="permission denied while trying to connect"),
            USER,
            "sudo usermod -aG docker $USER",
        ),
        (
            replace(NOTHING, endpoint="tcp://far:2375", chosen_by="DOCKER_HOST"),
            BOOKWORM,
            "at tcp://far:2375, chosen by DOCKER_HOST, does not answer",
        ),
        (
            replace(COMPLETE, endpoint="tcp://far:2375", chosen_by="DOCKER_HOST", compose=None),
            BOOKWORM,
            "compose v2 not found",
        ),
        (
            replace(COMPLETE, engine=replace(FACTS, version="20.10.24+dfsg1")),
            BOOKWORM,
            "found Docker Engine 20.10.24, needed is Docker Engine >= 25",
        ),
        (
            replace(STOPPED, dockerd="Docker version 20.10.24+dfsg1, build 297e128"),
            BOOKWORM,
            "apt-get remove docker.io, then repeat",
        ),
        (replace(NOTHING, client="podman version 4.3.1"), BOOKWORM, "docker is Podman here"),
    ],
)
def test_what_only_the_user_can_mend_is_refused_in_one_line_with_the_command(
    findings: Findings, host: Host, expected: str
) -> None:
    plan = decide(findings, host)
    assert plan.refusal is not None
    assert expected in plan.refusal
    assert "\n" not in plan.refusal
    assert not plan.packages
    assert not plan.start


def test_a_permission_that_is_missing_is_never_mended_by_installing() -> None:
    findings = replace(STOPPED, problem="PermissionError(13, 'Permission denied')", dockerd=None, compose=None)
    assert "usermod" in (decide(findings, USER).refusal or "")


def test_debian_testing_has_no_version_and_its_own_packages_do() -> None:
    testing = replace(BOOKWORM, version=None)
    assert decide(NOTHING, testing).packages
    assert install_command(testing).startswith("sudo apt-get install docker.io")


def test_apt_installs_what_it_is_told_without_recommendations_and_waits_for_its_lock() -> None:
    assert UPDATE == ("apt-get", "-o", "DPkg::Lock::Timeout=120", "update")
    assert install_argv(("docker.io", "docker-cli")) == (
        *("apt-get", "-o", "DPkg::Lock::Timeout=120"),
        *("install", "-y", "--no-install-recommends", "docker.io", "docker-cli"),
    )


def test_debian_12_gets_a_pinned_source_of_debian_13() -> None:
    files = apt_files(("docker.io",), BOOKWORM, [MIRROR], POLICY.format("20.10.24+dfsg1-1+deb12u1+b6"))
    assert sorted(files) == [
        APT / "preferences.d" / "cpu-train-stack-trixie",
        APT / "sources.list.d" / "cpu-train-stack-trixie.sources",
    ]
    assert "Suites: trixie\n" in files[APT / "sources.list.d" / "cpu-train-stack-trixie.sources"]


@pytest.mark.parametrize(
    ("packages", "host", "candidate"),
    [
        (("docker.io",), replace(BOOKWORM, version=13), "26.1.5+dfsg1-9"),
        (("docker.io",), replace(BOOKWORM, version=None), "(none)"),
        (("docker.io",), BOOKWORM, "26.1.5+dfsg1-9+deb13u1"),
        (("mmdebstrap",), BOOKWORM, "20.10.24+dfsg1"),
    ],
    ids=["Debian 13", "Debian testing", "Debian 12 with a newer source", "a package of Debian 12's own"],
)
def test_elsewhere_no_source_is_added(packages: tuple[str, ...], host: Host, candidate: str) -> None:
    assert apt_files(packages, host, [MIRROR], POLICY.format(candidate)) == {}


def test_a_debian_12_without_a_source_of_its_own_is_a_clear_error() -> None:
    with pytest.raises(UsageError, match="found no apt source of bookworm main"):
        apt_files(("docker.io",), BOOKWORM, [], "")


def test_no_candidate_is_no_version() -> None:
    assert parse_candidate(POLICY.format("(none)")) == parse_candidate("") == ()


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("Hit:1\nE: Unable to locate package x\nE: second\n", "Unable to locate package x"),
        (
            "W: Failed to fetch URL  Could not connect\nE: Package 'x' has no candidate\n",
            "Failed to fetch URL  Could",
        ),
        ("something\nlast line\n", "last line"),
        ("", "no output"),
    ],
)
def test_apts_cause_is_what_came_first(log: str, cause: str) -> None:
    assert apt_cause(log).startswith(cause)


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (
            'time="t" level=info msg="Starting up"\nfailed to start daemon: no space\n\n',
            "failed to start daemon: no space",
        ),
        ('time="t" level=fatal msg="cannot use \\"x\\" here" spam=1\n', 'cannot use "x" here'),
        ("\n", "it wrote no log"),
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
def test_a_pid_file_is_stale_unless_its_own_program_runs(
    tmp_path: Path, pid: str | None, status: str | None, stale: bool
) -> None:
    pid_file = tmp_path / "docker.pid"
    if pid is not None:
        pid_file.write_text(pid)
    if status is not None:
        (tmp_path / "7").mkdir()
        (tmp_path / "7" / "status").write_text(status)
    assert is_stale(pid_file, "dockerd", proc=tmp_path) is stale


def test_a_pid_file_of_a_process_that_runs_now_is_read_from_the_kernel(tmp_path: Path) -> None:
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
def test_only_an_engine_of_this_checkout_that_did_not_end_in_good_order_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: str | None, pid_file: str | None, killed: bool
) -> None:
    found = {"own": started, "docker.pid": pid_file}
    for name, text in found.items():
        if text is not None:
            (tmp_path / name).write_text(text)
    monkeypatch.setattr(engine_start, "STARTED", tmp_path / "own")
    monkeypatch.setattr(engine_start, "PID_FILES", {tmp_path / "docker.pid": "dockerd"})
    assert engine_start.was_killed() is killed


def test_os_release_is_read_with_quotes_comments_and_blank_lines() -> None:
    text = "# comment\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n\nID=debian\nVERSION_ID='12'\nnonsense\n"
    assert parse_os_release(text) == {
        "PRETTY_NAME": "Debian GNU/Linux 12 (bookworm)",
        "ID": "debian",
        "VERSION_ID": "12",
    }


@pytest.mark.parametrize(
    ("release", "version"),
    [
        ({"ID": "debian", "VERSION_ID": "12"}, 12),
        ({"ID": "ubuntu", "VERSION_ID": "24.04"}, 24),
        ({"ID": "debian"}, None),
    ],
    ids=["Debian 12", "Ubuntu 24.04", "Debian testing"],
)
def test_a_hosts_version_is_its_major_number(release: dict[str, str], version: int | None, tmp_path: Path) -> None:
    host = host_from(release, root=False, root_directory=tmp_path)
    assert (host.version, host.systemd, host.docker_ce, host.ca_certificates) == (version, False, False, False)


def test_a_hosts_marks_are_found_under_its_root(tmp_path: Path) -> None:
    for directory in ("run/systemd/system", "var/lib/dpkg/info", "etc/ssl/certs", "usr/lib"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/info/docker-ce.list").touch()
    (tmp_path / "etc/ssl/certs/ca-certificates.crt").touch()
    (tmp_path / "usr/lib/os-release").write_text("ID=debian\nVERSION_ID=12\n")
    host = read_host(tmp_path)
    assert (host.os_id, host.version, host.systemd, host.docker_ce, host.ca_certificates) == (
        *("debian", 12),
        *(True, True, True),
    )
