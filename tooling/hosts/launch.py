"""`./inv launch`: checks the hosts, starts a container on each, waits for the end, and removes the containers."""

import os
import queue
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from invoke.exceptions import Exit

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import UsageError, one_line
from cpu_train_stack.cli.files import LockedError, locked
from cpu_train_stack.cli.say import say
from tooling.cluster import keys
from tooling.cluster.wait import GRACE_SECONDS, STUCK_EXIT_CODE
from tooling.engine.ssh import Remote, RemoteError
from tooling.hosts import checks, commands, container, control, record
from tooling.hosts.connections import connect, each
from tooling.hosts.container import End
from tooling.hosts.job import Job, Place, forwarded_values, placeholder
from tooling.hosts.keeper import Keeper
from tooling.hosts.output import Output
from tooling.image import sign

_POLL_SECONDS = 0.2
_NOT_STARTED = "its container cannot be started"


def launch(job: Job, detach: bool, dry_run: bool) -> None:
    """Run the job and exit with its exit code. With `detach`, leave the job running.

    With `dry_run`, print the commands and run none of them. Raises UsageError if the job cannot start.
    """
    sign.verify_with(job.key, job.reference)
    if dry_run:
        places = [placeholder(index, job.output) for index in range(len(job.nodes))]
        for host, command in commands.dry_run(job, places):
            print(f"{host}$ {command}")
        return
    values = forwarded_values(job, os.environ)
    try:
        with locked(record.lock_of(job.name), waiting=None):
            old = record.read(job.name)
            if old and old.detached and not old.ended:
                raise UsageError(
                    f"job {job.name} is running, or has ended and its containers are left: choose another --name, "
                    f"or run ./inv stop --name {job.name}"
                )
            if detach:
                _start_detached(job, values)
                say(f"started job {job.name}: ./inv logs --name {job.name} shows its output, ./inv stop ends it")
                return
            code = _run(job, values)
    except LockedError:
        raise UsageError(
            f"job {job.name} is running: choose another --name, or stop it with ./inv stop --name {job.name}"
        ) from None
    if code != 0:
        raise Exit(code=code)


def _run(job: Job, values: bytes) -> int:
    """Start the job, watch it until its end and return its exit code. `values`: of job.forwarded."""
    with ExitStack() as stack:
        remotes, places = _check(job, stack)
        events: queue.Queue[End] = queue.Queue()
        keepers = _keepers(job, remotes, events)
        record.folder_of(job.name).mkdir(parents=True, exist_ok=True)
        record.log_of(job.name).unlink(missing_ok=True)
        output = Output(record.log_of(job.name), sys.stdout.buffer)
        code = contract.INTERRUPTED_EXIT_CODE
        record.write(record.of(job, detached=False))
        try:
            _start(job, remotes, places, values)
            for index, remote in enumerate(remotes):
                output.read(remote, job.container(index), has_rank_0=index == 0)
                threading.Thread(target=_wait, args=(remote, job.container(index), events), daemon=True).start()
            code = _until_end(job, events)
        except UsageError:
            code = STUCK_EXIT_CODE
            raise
        finally:
            _stop_mpirun(job, remotes)
            failures = _end(remotes, keepers)
            output.wait()
            output.close(failed=code not in (0, contract.INTERRUPTED_EXIT_CODE))
            for line in failures:
                say(line)
            _record_end(job, code)
    return code


def _record_end(job: Job, code: int) -> None:
    try:
        record.write(replace(record.of(job, detached=False), exit_code=code))
    except OSError as error:  # a full disk does not change the exit code
        say(f"{record.folder_of(job.name)}: {error.strerror}: the end of the job could not be recorded")


def _start_detached(job: Job, values: bytes) -> None:
    """Start the job and leave it running. If a container cannot start, remove all of them."""
    with ExitStack() as stack:
        remotes, places = _check(job, stack)
        record.log_of(job.name).unlink(missing_ok=True)
        started = record.of(job, detached=True)
        record.write(started)
        try:
            _start(job, remotes, places, values)
        except BaseException:
            try:
                control.remove_containers(started, remotes)
            finally:
                record.write(replace(started, exit_code=STUCK_EXIT_CODE))
            raise


def _check(job: Job, stack: ExitStack) -> tuple[list[Remote], list[Place]]:
    say(f"checking {', '.join(host.name for host in job.nodes)}")
    remotes, unreachable = connect(job.nodes, stack)
    places = checks.places(job, remotes, unreachable)
    for host, place in zip(job.nodes, places, strict=True):
        say(f"{host.name}: {place.address} on {place.interface}, output folder {place.output}")
    return remotes, places


def _keepers(job: Job, remotes: Sequence[Remote], events: queue.Queue[End]) -> list[Keeper]:
    def keep(item: tuple[int, Remote]) -> Keeper:
        index, remote = item
        return Keeper(remote, job.container(index), lambda why: events.put(End(remote.name, None, why)))

    return each(list(enumerate(remotes)), keep, [remote.name for remote in remotes])


def _start(job: Job, remotes: Sequence[Remote], places: Sequence[Place], values: bytes) -> None:
    """Create all containers, then start them."""
    archives = _keys(job, places) if job.mpirun else []
    names = [remote.name for remote in remotes]

    def create(index: int) -> None:
        reads_values = not job.mpirun or index == 0  # mpirun passes the values to the other hosts
        command = commands.create(job, index, places)
        remotes[index].check(command, _NOT_STARTED, values if reads_values else b"")
        if archives:
            remotes[index].check(commands.put_keys(job.container(index)), _NOT_STARTED, archives[index])

    def start(index: int) -> None:
        remotes[index].check(commands.start(job.container(index)), _NOT_STARTED)

    each(range(len(remotes)), create, names)
    each(range(len(remotes)), start, names)


def _keys(job: Job, places: Sequence[Place]) -> list[bytes]:
    """An archive for each host, with the host's key. The first also has the user's key."""
    client, servers = keys.files([place.address for place in places], job.ssh_port)
    servers[0] |= client
    return [keys.archive(own, int(place.uid), int(place.gid)) for place, own in zip(places, servers, strict=True)]


def _wait(remote: Remote, name: str, events: queue.Queue[End]) -> None:
    try:
        end = container.wait(remote, name)
    except Exception as error:  # noqa: BLE001 - whatever the host answers, the job has to end
        end = End(remote.name, None, f"its state cannot be read: {one_line(error)}")
    events.put(end)


def _until_end(job: Job, events: queue.Queue[End]) -> int:
    """0, or the exit code of the first container that failed. The others then have GRACE_SECONDS to end."""
    # Under mpirun, the containers of the other hosts run sshd until they are stopped.
    running = {host.name for host in (job.nodes[:1] if job.mpirun else job.nodes)}
    code, deadline = 0, None
    while running and (deadline is None or time.monotonic() < deadline):
        try:
            end = events.get(timeout=_POLL_SECONDS)
        except queue.Empty:
            continue
        running.discard(end.host)
        if end.code == 0 or code:
            continue
        code = end.code or STUCK_EXIT_CODE
        say(f"{end.host} is lost: {end.how}" if end.code is None else f"{end.host} {end.how}")
        deadline = time.monotonic() + GRACE_SECONDS
    return code


def _stop_mpirun(job: Job, remotes: Sequence[Remote]) -> None:
    """Remove the container of mpirun first: mpirun ends its ranks through the containers of the other hosts."""
    if job.mpirun:
        try:
            remotes[0].run(commands.remove(job.container(0)))
        except RemoteError:
            return  # a lost host removes its container when the session ends


def _end(remotes: Sequence[Remote], keepers: Sequence[Keeper]) -> list[str]:
    """Ask every host to remove its container. Return a line for each host that has not done so."""
    for keeper in keepers:
        keeper.end()
    return [
        f"{remote.name}: its container could not be removed now: the host will remove it "
        f"{commands.SILENCE_SECONDS} s after the connection broke, or when Docker answers again"
        for remote, keeper in zip(remotes, keepers, strict=True)
        if not keeper.removed()
    ]
