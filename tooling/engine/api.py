"""The Docker Engine that everything else uses: found, and on a bare Debian installed and started."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tooling.basis.errors import UsageError
from tooling.basis.files import locked
from tooling.basis.say import Say
from tooling.engine.decide import Plan, any_known, decide, may_act
from tooling.engine.find import Findings, find
from tooling.engine.host import Host, read_host
from tooling.engine.install import install
from tooling.engine.start import start, was_killed

# Shared by all checkouts: a machine has one engine, and only root sets it up.
LOCK = Path("/run/lock/cpu-train-stack-engine.lock")

__all__ = ["Engine", "Findings", "ensure", "ensure_mmdebstrap", "find"]


@dataclass(frozen=True)
class Engine:
    """An engine that answers, with a client, compose v2 and buildx. Versions are as reported."""

    endpoint: str
    version: str
    api: str
    buildkit: str
    client: str
    compose: str
    buildx: str
    root_dir: str
    cgroup_version: int
    storage_driver: str
    cpus: int
    memory: int


def ensure(say: Say) -> Engine:
    """The engine; what is missing is installed and started where that is allowed (see engine_plan.may_act).

    `say` gets one line before each thing that is done. Errors: UsageError with the commands for the user.
    """
    host, findings = read_host(), find()
    if _plan(findings, host).nothing:
        return _engine(findings)
    with locked(LOCK, lambda: say("waiting for another ./inv that is setting Docker up")):
        findings = find()  # another ./inv may have done everything in the meantime
        if packages := _plan(findings, host).packages:
            install(packages, host, say)
            host, findings = read_host(), find()  # where systemd runs, the package has started the engine
        if _plan(findings, host).start:
            findings = start(host, say)
    left = _plan(findings, host)
    if not left.nothing:
        raise UsageError(f"apt-get succeeded, but these packages are still missing: {', '.join(left.packages)}")
    return _engine(findings)


def start_again(say: Say) -> None:
    """Restarts an engine that this checkout started and that was killed. Restarts no other engine.

    Raises UsageError with the cause if the engine does not start.
    """
    if find().chosen_by or not was_killed():
        return
    with locked(LOCK, lambda: say("waiting for another ./inv that is setting Docker up")):
        if was_killed():  # another ./inv may have restarted it in the meantime
            start(read_host(), say)


def _plan(findings: Findings, host: Host) -> Plan:
    plan = decide(findings, host)
    if plan.refusal:
        raise UsageError(plan.refusal)
    return plan


def ensure_mmdebstrap(say: Say) -> None:
    """Installs mmdebstrap where it is missing and that is allowed. Errors: UsageError with the command."""
    host = read_host()
    if find().mmdebstrap:
        return
    if not may_act(host):
        raise UsageError(f"mmdebstrap not found on {host.name}; to install: sudo apt-get install mmdebstrap")
    with locked(LOCK, lambda: say("waiting for another ./inv that is setting Docker up")):
        install(("mmdebstrap",), host, say)


def _engine(findings: Findings) -> Engine:
    facts = findings.engine
    if facts is None:  # decide() has seen to it
        raise AssertionError("the plan expects an engine, but none answers")
    return Engine(
        endpoint=findings.endpoint,
        version=facts.version,
        api=facts.api,
        buildkit=any_known(findings.buildkit) or f">= 0.12 (Engine {facts.version})",
        client=findings.client or "",
        compose=findings.compose or "",
        buildx=findings.buildx or "",
        root_dir=facts.root_dir,
        cgroup_version=facts.cgroup_version,
        storage_driver=facts.storage_driver,
        cpus=facts.cpus,
        memory=facts.memory,
    )
