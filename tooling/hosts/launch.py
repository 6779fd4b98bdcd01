"""Runs a job on its hosts: checks them, starts a container on each, waits for the end, removes the containers."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from entrypoints import contract
from tooling.basis.errors import UsageError
from tooling.basis.say import Say
from tooling.cluster.wait import GRACE_SECONDS, STUCK_EXIT_CODE
from tooling.hosts import checks, commands, keys, record, state
from tooling.hosts.job import Job, Place
from tooling.hosts.keeper import Keeper
from tooling.hosts.output import Output
from tooling.hosts.remote import Remote, RemoteError
from tooling.hosts.state import End

_POLL_SECONDS = 0.2


def run(job: Job, secrets: Sequence[str], say: Say) -> int:
    """The exit code of the job. `secrets`: the values of job.secrets. Raises UsageError if it cannot start."""
    with ExitStack() as stack:
        remotes, places = _ready(job, stack, say)
        events: queue.Queue[End] = queue.Queue()
        keepers = _keepers(job, remotes, events)
        folder = record.folder_of(job.name)
        folder.mkdir(parents=True, exist_ok=True)
        output = Output(record.log_of(job.name), _show)
        code = contract.INTERRUPTED_EXIT_CODE
        record.write(record.of(job, detached=False))
        try:
            _start(job, remotes, places, secrets)
            for index, remote in enumerate(remotes):
                output.read(remote, job.container(index), first=index == 0)
                threading.Thread(target=_wait, args=(remote, job.container(index), events), daemon=True).start()
            code = _until_end(job, events, say)
        except UsageError:
            code = STUCK_EXIT_CODE
            raise
        finally:
            _stop_mpirun(job, remotes)
            left = _end(remotes, keepers)
            output.wait()
            output.close(failed=code not in (0, contract.INTERRUPTED_EXIT_CODE))
            record.write(replace(record.of(job, detached=False), exit_code=code))
            for line in left:
                say(line)
    return code


def start(job: Job, secrets: Sequence[str], say: Say) -> None:
    """Starts the job and leaves it running. If it cannot start, raises UsageError and leaves nothing running."""
    with ExitStack() as stack:
        remotes, places = _ready(job, stack, say)
        record.log_of(job.name).unlink(missing_ok=True)
        record.write(record.of(job, detached=True))
        try:
            _start(job, remotes, places, secrets)
        except BaseException:
            try:
                take_away(record.of(job, detached=True), remotes)
            finally:
                record.write(replace(record.of(job, detached=True), exit_code=STUCK_EXIT_CODE))
            raise


def take_away(job: record.Record, remotes: Sequence[Remote]) -> None:
    """Ends a job's containers, mpirun's own before the others. Raises UsageError with a line for each host."""
    by_host = {host.name: container for host, container in zip(job.hosts, job.containers, strict=True)}

    def one(remote: Remote) -> None:
        done = remote.run(commands.remove(by_host[remote.name]))
        if done.code != 0:
            raise RemoteError(f"its container cannot be removed: {done.last}")

    ahead = remotes[:1] if job.launcher == "mpirun" else []
    for part in (ahead, remotes[len(ahead) :]):
        checks.each(part, one, [remote.name for remote in part])


def plan(job: Job, places: Sequence[Place]) -> list[tuple[str, str]]:
    """Every command of the job in order, each with its host: what --dry-run shows."""
    names = [host.name for host in job.hosts]
    looks = [commands.ENGINE, commands.present_jobs(job.name), commands.image_id(job.image)]
    looks += [commands.pull(job.image)] if job.locked else []
    looks += [commands.CLOCK, commands.FACTS]
    looks += [commands.readable(job.data)] if job.data else []
    folders = [places[0].output, *([job.hub] if job.hub else [])]
    looks += [commands.writable(folder, f"{places[0].uid}:{places[0].gid}") for folder in folders]
    found = [(name, command) for name in names for command in looks]
    if len(names) > 1:
        found.append((names[1], f"getent ahostsv4 {names[0]}"))
    for index, name in enumerate(names[1:], 1):
        found.append((name, commands.route(places[0].address)))
        found.append((name, commands.reach(places[0].address, "SSH_PORT")))
        found.append((names[0], commands.reach(places[index].address, "SSH_PORT")))
    containers = [(name, job.container(index)) for index, name in enumerate(names)]
    found += [(name, commands.keep(container)) for name, container in containers]
    for index, (name, container) in enumerate(containers):
        found.append((name, commands.create(job, index, places)))
        found += [(name, commands.put_keys(container))] if job.mpirun else []
    found += [(name, commands.start(container)) for name, container in containers]
    for name, container in containers:
        found += [(name, work(container)) for work in (commands.logs, commands.wait, commands.state)]
    return found


def _ready(job: Job, stack: ExitStack, say: Say) -> tuple[list[Remote], list[Place]]:
    say(f"checking {', '.join(host.name for host in job.hosts)}")
    remotes, unreachable = checks.connect(job.hosts)
    for remote in remotes:
        stack.callback(remote.close)
    places = checks.places(job, remotes, unreachable)
    for host, place in zip(job.hosts, places, strict=True):
        say(f"{host.name}: {place.address} on {place.interface}, output folder {place.output}")
    return remotes, places


def _keepers(job: Job, remotes: Sequence[Remote], events: queue.Queue[End]) -> list[Keeper]:
    def one(item: tuple[int, Remote]) -> Keeper:
        index, remote = item
        return Keeper(remote, job.container(index), lambda why: events.put(End(remote.name, None, why)))

    return checks.each(list(enumerate(remotes)), one, [remote.name for remote in remotes])


def _start(job: Job, remotes: Sequence[Remote], places: Sequence[Place], secrets: Sequence[str]) -> None:
    values = "".join(f"{value}\n" for value in secrets).encode()
    archives = keys.make(job, places) if job.mpirun else []
    names = [remote.name for remote in remotes]

    def create_one(index: int) -> None:
        first = not job.mpirun or index == 0  # mpirun hands the values on from there
        _must(remotes[index], commands.create(job, index, places), values if first else b"")
        if archives:
            _must(remotes[index], commands.put_keys(job.container(index)), archives[index])

    def start_one(index: int) -> None:
        _must(remotes[index], commands.start(job.container(index)))

    checks.each(range(len(remotes)), create_one, names)
    checks.each(range(len(remotes)), start_one, names)


def _must(remote: Remote, command: str, stdin: bytes = b"") -> None:
    done = remote.run(command, stdin)
    if done.code != 0:
        raise RemoteError(f"its container cannot be started: {done.last}")


def _wait(remote: Remote, container: str, events: queue.Queue[End]) -> None:
    events.put(state.until_end(remote, container))


def _until_end(job: Job, events: queue.Queue[End], say: Say) -> int:
    """0, or the code of the first container that failed; the others then have GRACE_SECONDS to end."""
    # mpirun's other hosts wait for ssh until they are stopped
    waiting = {host.name for host in (job.hosts[:1] if job.mpirun else job.hosts)}
    code, deadline = 0, None
    while waiting and (deadline is None or time.monotonic() < deadline):
        try:
            event = events.get(timeout=_POLL_SECONDS)
        except queue.Empty:
            continue
        waiting.discard(event.host)
        if event.code == 0 or code:
            continue
        code = event.code or STUCK_EXIT_CODE
        say(f"{event.host} is lost: {event.how}" if event.code is None else f"{event.host} {event.how}")
        deadline = time.monotonic() + GRACE_SECONDS
    return code


def _stop_mpirun(job: Job, remotes: Sequence[Remote]) -> None:
    """Removes mpirun's container first: mpirun ends its ranks through those of the other hosts."""
    if job.mpirun:
        try:
            remotes[0].run(commands.remove(job.container(0)))
        except RemoteError:
            return  # a lost host removes the container without being asked


def _end(remotes: Sequence[Remote], keepers: Sequence[Keeper]) -> list[str]:
    """Has every host remove its container. Returns a line for each host that has not done so."""
    for keeper in keepers:
        keeper.end()
    return [
        f"{remote.name}: its container could not be removed now: the host will remove it "
        f"{commands.SILENCE_SECONDS} s after the connection broke, or when Docker answers again"
        for remote, keeper in zip(remotes, keepers, strict=True)
        if not keeper.gone()
    ]


def _show(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
