"""Provides a Docker Engine: finds it and, as root on Debian, installs and starts what is missing."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tooling.basis.errors import UsageError
from tooling.basis.files import locked
from tooling.basis.say import say
from tooling.engine.decide import Plan, decide, may_act
from tooling.engine.find import Findings, Host, find, read_host
from tooling.engine.install import install
from tooling.engine.start import start, was_killed

# All checkouts share this lock: a machine has one engine, and only root sets it up.
LOCK = Path("/run/lock/cpu-train-stack-engine.lock")


@dataclass(frozen=True)
class Engine:
    """A running engine. `cpus`: the number of CPUs of the engine's machine, which may be a remote machine."""

    endpoint: str
    cpus: int


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


def running() -> Engine:
    """The running engine. Installs and starts nothing: raises UsageError if no engine answers."""
    findings = find()
    if findings.engine is None:
        raise UsageError(
            f"Docker does not answer: {findings.problem or 'not found'}; run ./inv doctor for details"
        )
    return _engine(findings)


def start_again() -> None:
    """Restart the engine if this checkout started it and it was killed. Never restarts another engine.

    Raises UsageError with the cause if the engine does not start.
    """
    if find().chosen_by or not was_killed():
        return
    with _setting_up():
        if was_killed():  # another ./inv may have restarted it in the meantime
            start(read_host())


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


def _plan(findings: Findings, host: Host) -> Plan:
    plan = decide(findings, host)
    if plan.refusal:
        raise UsageError(plan.refusal)
    return plan
