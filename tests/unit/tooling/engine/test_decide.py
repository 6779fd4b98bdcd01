"""What is installed and started for which findings, and what only the user can fix."""

from dataclasses import replace

import pytest

from tests.unit.tooling.engine.findings import BOOKWORM, COMPLETE, FACTS, NOTHING, STOPPED
from tooling.engine.decide import EnginePlan, buildkit_is_enough, debian_packages, decide, install_command
from tooling.engine.find import EngineHost, Findings

USER = replace(BOOKWORM, root=False)


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
def test_the_version_of_buildkit_decides_or_else_that_of_the_engine(
    buildkit: str | None, engine: str, enough: bool
) -> None:
    assert buildkit_is_enough(buildkit, engine) is enough


def test_if_nothing_is_missing_nothing_is_done() -> None:
    assert decide(COMPLETE, BOOKWORM).nothing
    assert decide(COMPLETE, replace(BOOKWORM, root=False, os_id="fedora")).nothing


@pytest.mark.parametrize(
    ("findings", "plan"),
    [
        (
            NOTHING,
            EnginePlan(("docker.io", "docker-cli", "docker-compose", "docker-buildx", "mmdebstrap"), start=True),
        ),
        (
            replace(NOTHING, client="28.2.2", mmdebstrap="/usr/bin/mmdebstrap"),
            EnginePlan(("docker.io", "docker-compose", "docker-buildx"), start=True),
        ),
        (replace(COMPLETE, compose=None), EnginePlan(("docker-compose",))),
        (replace(COMPLETE, compose="1.29.2"), EnginePlan(("docker-compose",))),
        (
            replace(COMPLETE, buildx=None, buildkit=None, mmdebstrap=None),
            EnginePlan(("docker-buildx", "mmdebstrap")),
        ),
        (replace(COMPLETE, client=None, compose=None), EnginePlan(("docker-cli", "docker-compose"))),
        (replace(COMPLETE, mmdebstrap=None), EnginePlan()),
        (STOPPED, EnginePlan(start=True)),
    ],
    ids=["bare", "static client", "compose", "compose v1", "buildx", "mounted socket", "mmdebstrap", "stopped"],
)
def test_as_root_on_debian_exactly_what_is_missing_is_installed_and_started(
    findings: Findings, plan: EnginePlan
) -> None:
    assert decide(findings, BOOKWORM) == plan


def test_certificates_are_installed_with_an_engine_only_if_they_are_missing() -> None:
    bare = replace(BOOKWORM, ca_certificates=False)
    assert debian_packages(NOTHING, bare)[-1] == "ca-certificates"
    assert "ca-certificates" not in debian_packages(NOTHING, BOOKWORM)
    assert "ca-certificates" not in debian_packages(replace(COMPLETE, compose=None), bare)


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
        (STOPPED, USER, "not running; to start it: sudo sh -c 'dockerd"),
        (STOPPED, replace(USER, systemd=True), "not running; to start it: sudo systemctl start docker"),
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
            "found Docker Engine 20.10.24, expected Docker Engine >= 25",
        ),
        (
            replace(STOPPED, dockerd="Docker version 20.10.24+dfsg1, build 297e128"),
            BOOKWORM,
            "apt-get remove docker.io, then retry",
        ),
        (replace(NOTHING, client="podman version 4.3.1"), BOOKWORM, "docker is Podman (podman version 4.3.1)"),
    ],
)
def test_a_problem_for_the_user_is_one_line_with_the_command(
    findings: Findings, host: EngineHost, expected: str
) -> None:
    plan = decide(findings, host)
    assert plan.refusal is not None
    assert expected in plan.refusal
    assert "\n" not in plan.refusal
    assert not plan.packages
    assert not plan.start


def test_a_missing_permission_is_never_fixed_by_installing() -> None:
    findings = replace(STOPPED, problem="PermissionError(13, 'Permission denied')", dockerd=None, compose=None)
    assert "usermod" in (decide(findings, USER).refusal or "")


def test_debian_testing_has_no_version_and_uses_its_own_packages() -> None:
    testing = replace(BOOKWORM, version=None)
    assert decide(NOTHING, testing).packages
    assert install_command(testing).startswith("sudo apt-get install docker.io")
