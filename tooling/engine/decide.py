"""Decides, from what was found, what is to be installed and started, or what the user can do instead. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tooling.engine.find import Findings, version_tuple
from tooling.engine.host import Host

MINIMUM_ENGINE = (25,)  # the first whose BuildKit is >= 0.12
MINIMUM_BUILDKIT = (0, 12)
MINIMUM_COMPOSE = (2,)
MINIMUM_BUILDX = (0, 8)  # --build-context
OLDEST_DEBIAN = 12

_DOCKERS_SCRIPT = "curl -fsSL https://get.docker.com | sudo sh"
_BY_SYSTEM = {
    "arch": "sudo pacman -S docker docker-buildx docker-compose",
    "darwin": "install Docker Desktop, https://docs.docker.com/desktop/setup/install/mac-install/",
    "debian": _DOCKERS_SCRIPT,
    "fedora": _DOCKERS_SCRIPT,
    "ubuntu": "sudo apt-get install docker.io docker-buildx docker-compose-v2",
}
_ELSEWHERE = "follow https://docs.docker.com/engine/install/"
_DEBIANS_OWN = "sudo apt-get install docker.io docker-cli docker-compose docker-buildx mmdebstrap"
_DOCKERS_PLUGINS = "sudo apt-get install docker-buildx-plugin docker-compose-plugin"


@dataclass(frozen=True)
class Plan:
    """Either a `refusal` (one line with the commands), or the actions to take. No action: nothing is missing."""

    packages: tuple[str, ...] = ()
    start: bool = False
    refusal: str | None = None

    @property
    def nothing(self) -> bool:
        return not (self.packages or self.start or self.refusal)


def any_known(buildkit: str | None) -> str | None:
    """BuildKit's version, unless it is missing or the 0.0.0 of a distribution that left it out."""
    return buildkit if any(version_tuple(buildkit)) else None


def buildkit_is_enough(buildkit: str | None, engine: str) -> bool:
    """By BuildKit's own version, or where a distribution left that out (0.0.0) by the engine's."""
    known = any_known(buildkit)
    return version_tuple(known) >= MINIMUM_BUILDKIT if known else version_tuple(engine) >= MINIMUM_ENGINE


def lacking(findings: Findings) -> tuple[str, ...]:
    """What is missing, in words; an engine that is installed and does not run is not missing."""
    return tuple(
        name
        for name, missing in (
            ("Docker Engine", findings.engine is None and findings.dockerd is None),
            ("the docker client", findings.client is None),
            ("compose v2", version_tuple(findings.compose) < MINIMUM_COMPOSE),
            ("buildx >= 0.8", version_tuple(findings.buildx) < MINIMUM_BUILDX),
        )
        if missing
    )


_PACKAGES = {
    "Docker Engine": "docker.io",
    "the docker client": "docker-cli",
    "compose v2": "docker-compose",
    "buildx >= 0.8": "docker-buildx",
}


def debian_packages(findings: Findings, host: Host) -> tuple[str, ...]:
    """Debian's packages for what is missing only, so that apt upgrades nothing."""
    packages = [_PACKAGES[name] for name in lacking(findings)]
    if packages and not findings.mmdebstrap:
        packages.append("mmdebstrap")
    if "docker.io" in packages and not host.ca_certificates:
        packages.append("ca-certificates")
    return tuple(packages)


def install_command(host: Host) -> str:
    """What the user types to have Docker here, by the distribution's or Docker's own documented way."""
    if host.docker_ce:
        return _DOCKERS_PLUGINS
    if host.os_id == "debian" and (host.version is None or host.version > OLDEST_DEBIAN):
        return _DEBIANS_OWN
    return _BY_SYSTEM.get(host.os_id, _ELSEWHERE)


def start_command(host: Host) -> str:
    """What the user types to start the engine."""
    if host.os_id == "darwin":
        return "open -a Docker"
    if host.systemd:
        return "sudo systemctl start docker"
    return "sudo sh -c 'dockerd >/var/log/dockerd.log 2>&1 &'"


def may_act(host: Host) -> bool:
    """Only on Debian, as root, from the release on whose packages are known to work."""
    return host.os_id == "debian" and host.root and (host.version is None or host.version >= OLDEST_DEBIAN)


def decide(findings: Findings, host: Host) -> Plan:
    """The first reason that holds, from problems that only the user can fix to those that can be fixed here."""
    refusal = _refusal(findings, host)
    if refusal:
        return Plan(refusal=refusal)
    return Plan(packages=debian_packages(findings, host), start=findings.engine is None)


def _refusal(findings: Findings, host: Host) -> str | None:
    problem = findings.problem or ""
    missing = lacking(findings)
    there = findings.engine.version if findings.engine else findings.dockerd
    if findings.client and "podman" in findings.client.lower():
        return f"docker is Podman ({findings.client}), expected Docker Engine >= 25: {install_command(host)}"
    if findings.engine is None and "permission denied" in problem.lower():
        return (
            f"no permission to use Docker at {findings.endpoint}: run `sudo usermod -aG docker $USER`, "
            "log in again, and retry"
        )
    if findings.engine is None and findings.chosen_by:
        return (
            f"the Docker Engine at {findings.endpoint}, chosen by {findings.chosen_by}, does not answer "
            f"({problem}); start it, or choose another engine"
        )
    if there and not buildkit_is_enough(findings.buildkit, there):
        return (
            f"found {_engine_name(there)}, expected Docker Engine >= 25 (BuildKit >= 0.12): "
            f"to upgrade: {_upgrade_command(host)}"
        )
    if missing and (findings.chosen_by or host.docker_ce or not may_act(host)):
        return f"{' and '.join(missing)} not found on {host.name}; to install: {install_command(host)}"
    if findings.engine is None and not may_act(host):
        return f"Docker Engine is installed but not running; to start it: {start_command(host)}"
    return None


def _engine_name(version: str) -> str:
    numbers = version_tuple(version)
    return "Docker Engine " + ".".join(map(str, numbers)) if numbers else version


def _upgrade_command(host: Host) -> str:
    if host.docker_ce:
        return "sudo apt-get install docker-ce docker-ce-cli docker-buildx-plugin docker-compose-plugin"
    if may_act(host):
        return "apt-get remove docker.io, then retry: ./inv installs a newer version"
    return install_command(host)
