"""`./inv logs`, `status` and `stop` for jobs on hosts."""

import shutil
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import BinaryIO

from entrypoints import contract
from tooling.basis.errors import UsageError
from tooling.basis.say import say
from tooling.cluster.follow import lines
from tooling.hosts import commands, container, record
from tooling.hosts.record import Record
from tooling.hosts.remote import Remote, connect, each

_POLL_SECONDS = 0.2


def logs(job: Record, follow: bool) -> None:
    """Print the job's log, or for a detached job the output of its containers so far.

    `follow`: until the job ends.
    """
    log = record.log_of(job.name)
    if log.is_file():
        with log.open("rb") as file:
            while follow and not job.detached and record.runs(job):
                shutil.copyfileobj(file, sys.stdout.buffer)
                sys.stdout.buffer.flush()
                time.sleep(_POLL_SECONDS)
            shutil.copyfileobj(file, sys.stdout.buffer)  # also what was written after the last look
        return
    with ExitStack() as stack:
        _copy_output(job, _connect_all(job, stack), follow, sys.stdout.buffer)


def status(job: Record) -> list[tuple[str, str, str]]:
    """The host, name and state of each container. Raises UsageError, a line for each host that does not answer."""
    names = [host.name for host in job.hosts]
    if job.ended:
        state = f"ended, exit code {job.exit_code}"
        return [(name, container, state) for name, container in zip(names, job.containers, strict=True)]
    with ExitStack() as stack:
        pairs = list(zip(_connect_all(job, stack), job.containers, strict=True))
        return each(pairs, lambda pair: (pair[0].name, pair[1], _state(*pair)), names)


def stop(job: Record) -> None:
    """Stop the job and remove its containers. Its log stays."""
    if job.ended:
        raise UsageError(f"job {job.name} has ended with exit code {job.exit_code}: nothing to stop")
    with ExitStack() as stack:
        remotes = _connect_all(job, stack)
        if job.detached:
            with record.log_of(job.name).open("wb") as file:
                _copy_output(job, remotes, follow=False, target=file)
        remove_containers(job, remotes)
    if job.detached:  # otherwise the ./inv launch that watches the job records its end
        record.write(replace(job, exit_code=contract.TERMINATED_EXIT_CODE))
    say(f"job {job.name} is stopped")


def remove_containers(job: Record, remotes: Sequence[Remote]) -> None:
    """Remove a job's containers, that of mpirun first. Raises UsageError with a line for each host that fails."""
    by_host = {host.name: container for host, container in zip(job.hosts, job.containers, strict=True)}

    def remove(remote: Remote) -> None:
        remote.check(commands.remove(by_host[remote.name]), "its container cannot be removed")

    first = remotes[:1] if job.launcher == "mpirun" else []
    for part in (first, remotes[len(first) :]):
        each(part, remove, [remote.name for remote in part])


def _copy_output(job: Record, remotes: Sequence[Remote], follow: bool, target: BinaryIO) -> None:
    """Copy the output of all containers to `target`, each line behind its host's name.

    Raises BrokenPipeError if nobody reads `target` any more.
    """
    lock, closed = threading.Lock(), threading.Event()

    def copy(remote: Remote, container: str) -> None:
        try:
            for line in lines(remote.stream(commands.logs(container, follow))):
                with lock:
                    target.write(f"{remote.name} | ".encode() + line)
                    target.flush()
        except BrokenPipeError:
            closed.set()

    readers = [
        threading.Thread(target=copy, args=pair, daemon=True)  # daemon: ctrl-C ends --follow
        for pair in zip(remotes, job.containers, strict=True)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        while reader.is_alive() and not closed.is_set():
            reader.join(timeout=_POLL_SECONDS)
    if closed.is_set():
        raise BrokenPipeError


def _connect_all(job: Record, stack: ExitStack) -> list[Remote]:
    remotes, failures = connect(job.hosts, stack)
    if failures:
        raise UsageError("\n".join(failures))
    return remotes


def _state(remote: Remote, name: str) -> str:
    found = container.state(remote, name, timeout=0.0)
    if found is None:
        return "unknown: Docker does not answer"
    return f"{found.status}, exit code {found.code}" if found.ended else found.status
