"""`./inv logs`, `status` and `stop` for jobs on hosts."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import BinaryIO

from entrypoints import contract
from tooling.basis.errors import UsageError
from tooling.basis.say import say
from tooling.cluster.follow import lines
from tooling.hosts import checks, commands, launch, record
from tooling.hosts.record import Record
from tooling.hosts.remote import Remote


@dataclass(frozen=True)
class State:
    """One container: `what` is the engine's word for its state, "gone" where there is none."""

    host: str
    container: str
    what: str


def logs(job: Record, follow: bool) -> None:
    """Prints the job's output: its log if it was watched, else what its containers have printed so far."""
    log = record.log_of(job.name)
    if log.is_file():
        print(log.read_text(encoding="utf-8", errors="replace"), end="")
        return
    with ExitStack() as stack:
        remotes = _connected(job, stack)
        lock = threading.Lock()
        readers = []
        for remote, container in zip(remotes, job.containers, strict=True):
            target = (remote, commands.logs(container, follow), lock, sys.stdout.buffer)
            readers.append(threading.Thread(target=_copy, args=target, daemon=True))
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()


def states(job: Record) -> list[State]:
    """What has become of the job's containers. Raises UsageError, a line for each host that cannot be asked."""
    pairs = list(zip(job.hosts, job.containers, strict=True))
    if job.ended:
        what = f"ended, exit code {job.exit_code}"
        return [State(host.name, container, what) for host, container in pairs]
    with ExitStack() as stack:
        remotes = _connected(job, stack)

        def look(item: tuple[Remote, str]) -> State:
            remote, container = item
            return State(remote.name, container, _words(remote, container))

        items = list(zip(remotes, job.containers, strict=True))
        return checks.each(items, look, [remote.name for remote in remotes])


def stop(job: Record) -> None:
    """Ends the job on all its hosts and takes its containers away. Its log stays."""
    if job.ended:
        raise UsageError(f"job {job.name} has ended with exit code {job.exit_code}: nothing to stop")
    with ExitStack() as stack:
        remotes = _connected(job, stack)
        if job.detached:
            _keep_output(job, remotes)
        launch.take_away(job, remotes)
    if job.detached:  # else who watches it writes its end
        record.write(replace(job, exit_code=contract.TERMINATED_EXIT_CODE))
    say(f"job {job.name} is stopped")


def _keep_output(job: Record, remotes: Sequence[Remote]) -> None:
    lock = threading.Lock()
    with record.log_of(job.name).open("wb") as file:
        for remote, container in zip(remotes, job.containers, strict=True):
            _copy(remote, commands.logs(container, follow=False), lock, file)


def _copy(remote: Remote, command: str, lock: threading.Lock, target: BinaryIO) -> None:
    for line in lines(remote.stream(command)):
        with lock:
            target.write(f"{remote.name} | ".encode() + line)
            target.flush()


def _connected(job: Record, stack: ExitStack) -> list[Remote]:
    remotes, unreachable = checks.connect(job.hosts)
    for remote in remotes:
        stack.callback(remote.close)
    if unreachable:
        raise UsageError("\n".join(unreachable))
    return remotes


def _words(remote: Remote, container: str) -> str:
    done = remote.run(commands.state(container))
    words = done.out.split()
    if done.code != 0 or len(words) < 2:
        return "gone"
    return words[0] if words[0] == "running" else f"{words[0]}, exit code {words[1]}"
