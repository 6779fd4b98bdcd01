"""`./inv logs`, `status`, `watch` and `stop` for jobs on hosts."""

import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from invoke.exceptions import Exit

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import UsageError, mistakes
from cpu_train_stack.cli.say import say
from tooling.cluster.follow import copy_lines, copy_log, lines
from tooling.cluster.nodes import GONE, Node
from tooling.engine.ssh import FAILED, Remote, RemoteError
from tooling.hosts import commands, container, record
from tooling.hosts.connections import connect, each
from tooling.hosts.record import Record

_POLL_SECONDS = 0.2
_KILLED = 137  # the exit code of a command in a container that ends
# Leave the alternate screen and show the cursor, if the command cannot: its container or the connection ended.
_RESTORE = b"\x1b[?1049l\x1b[?25h\x1b[0m\r\n"


def logs(job: Record, follow: bool) -> None:
    """Print the job's log, or for a detached job the output of its containers so far.

    `follow`: until the job ends. Raises Exit with the exit code of bad usage if a host cannot be connected, or if
    the connection breaks.
    """
    log = record.log_of(job.name)
    if log.is_file():
        with log.open("rb") as file:
            while follow and not job.detached and record.runs(job):
                copy_log(file, sys.stdout.buffer, grows=True)
                time.sleep(_POLL_SECONDS)
            # Also what was written after the last look. A job that runs may still be writing its last line.
            copy_log(file, sys.stdout.buffer, grows=record.runs(job))
        return
    with ExitStack() as stack:
        remotes, failures = connect(job.hosts, stack)
        for line in failures:  # now, because --follow may take hours
            say(line)
        containers = _containers(job)

        def output(remote: Remote) -> Iterator[bytes]:
            def report() -> None:
                line = f"{remote.name}: the connection has ended: run ./inv logs --name {job.name} again"
                failures.append(line)
                say(line)

            command = commands.logs(containers[remote.name], follow)
            return lines(remote.name, remote.stream(command, lost=report))

        copy_lines([output(remote) for remote in remotes], sys.stdout.buffer)
    if failures:
        raise Exit(code=contract.USAGE_EXIT_CODE)


def status(job: Record) -> list[tuple[str, str, str]]:
    """The host, name and state of each container. Raises UsageError, a line for each host that does not answer."""
    names = [host.name for host in job.hosts]
    if job.ended:
        state = f"ended, exit code {job.exit_code}"
        return [(name, container, state) for name, container in zip(names, job.containers, strict=True)]
    with ExitStack() as stack:
        remotes, failures = connect(job.hosts, stack)
        if failures:
            raise UsageError("\n".join(failures))
        pairs = list(zip(remotes, job.containers, strict=True))
        return each(pairs, lambda pair: (pair[0].name, pair[1], _state(*pair)), names)


def watch(job: Record) -> None:
    """Show the job until it ends, with `entrypoint watch` in the first host's container.

    Raises Exit with the exit code of that command.
    """
    if not record.runs(job):
        how = f" with exit code {job.exit_code}" if job.ended else ""
        raise UsageError(
            f"job {job.name} has ended{how}, expected a running job: ./inv logs --name {job.name} shows its output"
        )
    terminal = all(map(os.isatty, (0, 1))) and os.environ.get("TERM", "dumb") != "dumb"
    with ExitStack() as stack:
        remotes, failures = connect(job.hosts[:1], stack)
        if failures:
            raise UsageError("\n".join(failures))
        code = remotes[0].show(commands.watch(job.containers[0], terminal), terminal)
    if terminal and code in (FAILED, _KILLED):
        sys.stdout.buffer.write(_RESTORE)
        sys.stdout.flush()
    if code == FAILED:
        raise UsageError(f"{job.hosts[0].name}: the connection has ended: run ./inv watch again")
    if code == _KILLED:
        say(f"job {job.name} has ended: ./inv logs --name {job.name} shows its output")
    elif code:
        raise Exit(code=code)


def stop(job: Record) -> None:
    """Stop the job, if it has not ended, and remove its containers. Its log stays.

    Raises UsageError, a line for each host that does not answer or fails. The other hosts' containers are removed.
    """
    if job.ended:
        raise UsageError(f"job {job.name} has ended with exit code {job.exit_code}: nothing to stop")
    states: dict[str, Node | None] = {}
    with ExitStack() as stack:
        remotes, failures = connect(job.hosts, stack)
        if job.detached:
            states |= _save_output(job, remotes)
            failures += [
                f"{name}: Docker does not answer: check it on the host"
                for name, state in states.items()
                if state is None
            ]
            remotes = [remote for remote in remotes if states[remote.name]]
        failures += mistakes([partial(remove_containers, job, remotes)])
    if failures:
        again = f"run ./inv stop --name {job.name} again when these hosts answer"
        if job.detached:
            again += f"; if they never will, delete {record.folder_of(job.name)}"
        raise UsageError("\n".join([*failures, f"job {job.name} may still be running there: {again}"]))
    if not job.detached:  # the ./inv launch that watches the job records its end
        say(f"job {job.name} is stopped")
        return
    _join_output(job)
    code = _exit_code(job, states)
    how = "is stopped" if code is None else f"had ended with exit code {code}: its containers are removed"
    record.write(replace(job, exit_code=contract.TERMINATED_EXIT_CODE if code is None else code))
    say(f"job {job.name} {how}")


def remove_containers(job: Record, remotes: Sequence[Remote]) -> None:
    """Remove a job's containers, that of mpirun first. Raises UsageError with a line for each host that fails."""
    containers = _containers(job)

    def remove(remote: Remote) -> None:
        remote.check(commands.remove(containers[remote.name]), "its container cannot be removed")

    first = [remote for remote in remotes if job.launcher == "mpirun" and remote.name == job.hosts[0].name]
    parts = (first, [remote for remote in remotes if remote not in first])
    if failures := mistakes(partial(each, part, remove, [remote.name for remote in part]) for part in parts):
        raise UsageError("\n".join(failures))


def _containers(job: Record) -> dict[str, str]:
    """The job's container on each host."""
    return {host.name: container for host, container in zip(job.hosts, job.containers, strict=True)}


def _part(job: Record, container: str) -> Path:
    return record.folder_of(job.name) / f"{container}.part"


def _save_output(job: Record, remotes: Sequence[Remote]) -> dict[str, Node | None]:
    """Save the output of each host's container. Return the states before, None if Docker does not answer."""
    containers = _containers(job)

    def broken() -> None:
        raise RemoteError("the connection broke while its output was saved")

    def save(remote: Remote) -> Node | None:
        name = containers[remote.name]
        found, _ = container.state(remote, name, timeout=0.0)
        if found and found.status != GONE:  # an earlier ./inv stop removed it and saved its output
            with _part(job, name).open("wb") as file:
                file.writelines(lines(remote.name, remote.stream(commands.logs(name, follow=False), broken)))
        return found

    names = [remote.name for remote in remotes]
    return dict(zip(names, each(remotes, save, names), strict=True))


def _exit_code(job: Record, states: Mapping[str, Node | None]) -> int | None:
    """0, or the first exit code of a container that failed. None if the job had not ended."""
    # Under mpirun, the other hosts run sshd until they are stopped.
    watched = [states[host.name] for host in (job.hosts[:1] if job.launcher == "mpirun" else job.hosts)]
    codes = [node.exit_code for node in watched if node and node.status == "exited"]
    return next(filter(None, codes), 0) if len(codes) == len(watched) else None


def _join_output(job: Record) -> None:
    """Write the job's log: the saved output of one host after the other."""
    saved = [part for part in (_part(job, name) for name in job.containers) if part.is_file()]
    complete = record.folder_of(job.name) / "log.part"
    with complete.open("wb") as log:
        for part in saved:
            with part.open("rb") as file:
                shutil.copyfileobj(file, log)
    complete.replace(record.log_of(job.name))
    for part in saved:
        part.unlink()


def _state(remote: Remote, name: str) -> str:
    found, _ = container.state(remote, name, timeout=0.0)
    if found is None:
        return "unknown: Docker does not answer"
    ended = container.over(found) and found.status != GONE
    return f"{found.status}, exit code {found.exit_code}" if ended else found.status
