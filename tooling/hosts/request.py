"""`./inv launch`: turns the options as typed into a job."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from invoke.exceptions import Exit

from tooling.basis.errors import UsageError
from tooling.basis.files import LockedError, locked
from tooling.basis.say import say
from tooling.cluster import up
from tooling.cluster.run import check_name
from tooling.hosts import hostfile, launch, record
from tooling.hosts.job import Job, unknown
from tooling.image.choice import Choice


@dataclass(frozen=True)
class Request:
    """The options of `./inv launch`; `command` is what stands behind --."""

    command: tuple[str, ...]
    choice: Choice
    hosts: str
    ranks_per_node: int | None
    launcher: str
    name: str
    data: str | None
    output: str | None
    hub: str | None
    environment: tuple[str, ...]
    memory: str | None
    port: int
    detach: bool
    dry_run: bool


def job_of(request: Request) -> Job:
    """Raises UsageError with one line for options that cannot be."""
    if not request.hosts:
        raise UsageError("launch needs --hosts: a file with a host's name on each line")
    hosts = hostfile.read(Path(request.hosts))
    return Job(
        name=check_name(request.name),
        hosts=hosts,
        ranks_per_node=hostfile.ranks(hosts, request.ranks_per_node),
        launcher=request.launcher,
        image=request.choice.reference,
        locked=request.choice.image_lock is not None,
        command=request.command,
        data=request.data,
        output=request.output,
        hub=request.hub,
        environment=up.variables(request.environment),
        memory=request.memory,
        port=request.port,
    )


def run(request: Request) -> None:
    """Runs the job and exits with its code; with `detach` leaves it running, with `dry_run` only shows it."""
    job = job_of(request)
    if request.dry_run:
        places = [unknown(index, job.output) for index in range(len(job.hosts))]
        for host, command in launch.plan(job, places):
            print(f"{host}$ {command}")
        return
    secrets = values(job.secrets, os.environ)
    try:
        with locked(record.lock_of(job.name), waiting=None):
            old = record.read(job.name)
            if old and old.detached and not old.ended:
                raise LockedError
            if request.detach:
                launch.start(job, secrets, say)
                say(f"started job {job.name}: ./inv logs --name {job.name} shows its output, ./inv stop ends it")
                return
            code = launch.run(job, secrets, say)
    except LockedError:
        raise UsageError(
            f"job {job.name} is running: choose another --name, or stop it with ./inv stop --name {job.name}"
        ) from None
    if code != 0:
        raise Exit(code=code)


def values(names: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """The caller's own values of `names`, which are handed on line by line. Raises UsageError."""
    up.check_set(names, environ)
    for name in names:
        if "\n" in environ[name]:
            raise UsageError(f"--env {name}: its value has several lines, expected one: pass a file instead")
    return [environ[name] for name in names]
