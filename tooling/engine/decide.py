"""Decides from the findings what to install and start, or what the user can do instead. Pure functions."""

from dataclasses import dataclass

from tooling.engine.find import EngineHost, Findings, version_tuple

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
class EnginePlan:
    """Either a `refusal` (one line with commands for the user) or actions. An empty plan: nothing is missing."""

    packages: tuple[str, ...] = ()
    start: bool = False
    refusal: str | None = None

    @property
    def nothing(self) -> bool:
        return not (self.packages or self.start or self.refusal)


def any_known(buildkit: str | None) -> str | None:
    """BuildKit's version; None if it is missing, or 0.0.0 as in a distribution's build without a version."""
    return buildkit if any(version_tuple(buildkit)) else None


def buildkit_is_enough(buildkit: str | None, engine: str) -> bool:
    """Compares the version of BuildKit or, if it is not known, of the engine."""
    known = any_known(buildkit)
    return version_tuple(known) >= MINIMUM_BUILDKIT if known else version_tuple(engine) >= MINIMUM_ENGINE


def lacking(findings: Findings) -> tuple[str, ...]:
    """The names of missing parts. An engine that is installed but not running is not missing."""
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


def debian_packages(findings: Findings, host: EngineHost) -> tuple[str, ...]:
    """Debian's packages for the missing parts only, so that apt upgrades nothing."""
    packages = [_PACKAGES[name] for name in lacking(findings)]
    if packages and not findings.mmdebstrap:
        packages.append("mmdebstrap")
    if "docker.io" in packages and not host.ca_certificates:
        packages.append("ca-certificates")
    return tuple(packages)


def install_command(host: EngineHost) -> str:
    """The command that installs Docker, as the distribution or Docker documents it."""
    if host.docker_ce:
        return _DOCKERS_PLUGINS
    if host.os_id == "debian" and (host.version is None or host.version > OLDEST_DEBIAN):
        return _DEBIANS_OWN
    return _BY_SYSTEM.get(host.os_id, _ELSEWHERE)


def start_command(host: EngineHost) -> str:
    if host.os_id == "darwin":
        return "open -a Docker"
    if host.systemd:
        return "sudo systemctl start docker"
    return "sudo sh -c 'dockerd >/var/log/dockerd.log 2>&1 &'"


def may_act(host: EngineHost) -> bool:
    """Whether ./inv may install and start Docker: only as root, on Debian 12 or later."""
    return host.os_id == "debian" and host.root and (host.version is None or host.version >= OLDEST_DEBIAN)


def decide(findings: Findings, host: EngineHost) -> EnginePlan:
    """The plan: a refusal if only the user can fix the problem, otherwise what to install and start."""
    refusal = _refusal(findings, host)
    if refusal:
        return EnginePlan(refusal=refusal)
    return EnginePlan(packages=debian_packages(findings, host), start=findings.engine is None)


def _refusal(findings: Findings, host: EngineHost) -> str | None:
    problem = findings.problem or ""
    missing = lacking(findings)
    version = findings.engine.version if findings.engine else findings.dockerd
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
    if version and not buildkit_is_enough(findings.buildkit, version):
        return (
            f"found {_engine_name(version)}, expected Docker Engine >= 25 (BuildKit >= 0.12): "
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


def _upgrade_command(host: EngineHost) -> str:
    if host.docker_ce:
        return "sudo apt-get install docker-ce docker-ce-cli docker-buildx-plugin docker-compose-plugin"
    if may_act(host):
        return "apt-get remove docker.io, then retry: ./inv installs a newer version"
    return install_command(host)
