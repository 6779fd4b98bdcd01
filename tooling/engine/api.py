"""Provides an engine: finds Docker and, as root on Debian, installs and starts what is missing; or uses podman."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import locked
from cpu_train_stack.cli.say import say
from tooling.engine import podman
from tooling.engine.decide import EnginePlan, decide, may_act
from tooling.engine.find import EngineHost, Findings, find, read_host
from tooling.engine.install import install
from tooling.engine.start import start, was_killed

# All checkouts share this lock: a machine has one engine, and only root sets it up.
LOCK = Path("/run/lock/cpu-train-stack-engine.lock")
DOCKER, PODMAN = ENGINES = ("docker", "podman")
EngineOption = Annotated[
    str | None, "docker or podman; default: docker, or podman where Docker is missing and ./inv cannot install it"
]


@dataclass(frozen=True)
class Engine:
    """A running engine. `cpus`: the number of CPUs of the engine's machine, which may be a remote machine."""

    endpoint: str
    cpus: int
    name: str = DOCKER

    @property
    def client(self) -> tuple[str, ...]:
        """The command line of this engine, to which the words of a command are added. Raises UsageError."""
        if self.name == DOCKER:  # it follows the same settings as `endpoint`
            return ("docker",)
        if not podman.installed():  # another machine's podman
            raise UsageError(
                f"the engine at {self.endpoint} is podman, and podman is not on PATH; to install: "
                f"{podman.install_command(read_host())}"
            )
        return ("podman", "--remote", f"--url={self.endpoint}")


def check(name: str | None) -> None:
    """Check the value of --engine. Raises UsageError."""
    if name not in (None, *ENGINES):
        raise UsageError(f"--engine is {name!r}, expected {' or '.join(ENGINES)}")


def for_cluster(name: str | None = None) -> Engine:
    """A running engine for clusters: the named one or, without a name, podman if it is the only one.

    Raises UsageError with the commands for the user if there is no such engine.
    """
    chosen = os.environ.get("DOCKER_HOST")
    if chosen and name != DOCKER and podman.answering(chosen):
        return _podman(chosen)
    if name == PODMAN and not podman.installed():
        raise UsageError(
            f"--engine podman: podman is not on PATH; to install: {podman.install_command(read_host())}"
        )
    if name == PODMAN or (name is None and _is_alone()):
        return _podman(podman.ensure())
    try:
        return ensure()
    except UsageError as error:
        if name is None and podman.installed():
            raise UsageError(f"{error}; or use podman: add --engine podman") from None
        raise


def _is_alone() -> bool:
    """Whether podman is installed, Docker is not, and ./inv may not install Docker."""
    if not podman.installed() or may_act(read_host()):
        return False
    findings = find()
    docker = findings.engine or findings.dockerd or findings.chosen_by
    return not docker and (findings.client is None or "podman" in findings.client.lower())


def _podman(endpoint: str) -> Engine:
    info = podman.answering(endpoint)
    if info is None:
        raise UsageError(f"podman's service at {endpoint} does not answer: retry")
    return Engine(endpoint, int(info["NCPU"]), PODMAN)


def ensure() -> Engine:
    """A running engine that has a client, compose v2 and buildx.

    Installs and starts what is missing if allowed (tooling.engine.decide.may_act), with one line for each step.
    Otherwise raises UsageError with the commands for the user.
    """
    host, findings = read_host(), find()
    if _plan(findings, host).nothing:
        return _engine(findings)
    with _setting_up():
        findings = find()  # another ./inv may have set everything up in the meantime
        if packages := _plan(findings, host).packages:
            install(packages, host)
            host, findings = read_host(), find()  # with systemd, the package has started the engine
        if _plan(findings, host).start:
            findings = start(host)
    left = _plan(findings, host)
    if not left.nothing:
        raise UsageError(f"apt-get succeeded, but these packages are still missing: {', '.join(left.packages)}")
    return _engine(findings)


def running() -> list[Engine]:
    """The engines that may run clusters of this checkout: Docker, and podman if the checkout has used it.

    Installs nothing, and starts only podman's service. Raises UsageError if no engine answers.
    """
    findings = find()
    engines = [_engine(findings)] if findings.engine else []
    try:
        if podman.used() and (endpoint := podman.ensure()) not in [engine.endpoint for engine in engines]:
            engines.append(_podman(endpoint))
    except UsageError as error:
        if not engines:
            raise
        say(f"without podman's clusters: {error}")
    if not engines:
        raise UsageError(
            f"Docker does not answer: {findings.problem or 'not found'}; run ./inv doctor for details"
        )
    return engines


def start_again(endpoint: str) -> None:
    """Restart a lost engine if this checkout started it: podman's service, or a Docker Engine that was killed.

    Never restarts another engine. Raises UsageError with the cause if the engine does not start.
    """
    if _is_podmans(endpoint):
        podman.ensure()
        return
    if find().chosen_by or not was_killed():
        return
    with _setting_up():
        if was_killed():  # another ./inv may have restarted it in the meantime
            start(read_host())


def _is_podmans(endpoint: str) -> bool:
    try:
        return podman.used() and endpoint == podman.endpoint()
    except UsageError:
        return False


def ensure_mmdebstrap() -> None:
    """Install mmdebstrap if it is missing. Raises UsageError with the command if ./inv may not install it."""
    host = read_host()
    if find().mmdebstrap:
        return
    if not may_act(host):
        raise UsageError(f"mmdebstrap not found on {host.name}; to install: sudo apt-get install mmdebstrap")
    with _setting_up():
        install(("mmdebstrap",), host)


@contextmanager
def _setting_up() -> Iterator[None]:
    with locked(LOCK, lambda: say("waiting for another ./inv that is setting Docker up")):
        yield


def _engine(findings: Findings) -> Engine:
    if findings.engine is None:  # the plan would have started the engine, or refused
        raise AssertionError("the plan expects an engine, but none answers")
    return Engine(findings.endpoint, findings.engine.cpus)


def _plan(findings: Findings, host: EngineHost) -> EnginePlan:
    plan = decide(findings, host)
    if plan.refusal:
        raise UsageError(plan.refusal)
    return plan
