"""The hosts of a job: the connections to all of them, and work on all of them in parallel."""

import resource
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from typing import TypeVar

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.placement.hostfile import HostfileEntry
from tooling.engine.ssh import Remote, RemoteError

Item = TypeVar("Item")
Result = TypeVar("Result")


def each(items: Sequence[Item], work: Callable[[Item], Result], names: Sequence[str]) -> list[Result]:
    """Call `work` on all items in parallel. Raises UsageError with a line for each that raised RemoteError."""
    pool = ThreadPoolExecutor(max_workers=max(1, len(items)))
    try:
        futures = [pool.submit(work, item) for item in items]
        wait(futures)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # after ctrl-C, `connect`'s stack ends the commands
    failures = []
    for name, future in zip(names, futures, strict=True):
        error = future.exception()
        if isinstance(error, RemoteError):
            failures.append(f"{name}: {error}")
    if failures:
        raise UsageError("\n".join(failures))
    return [future.result() for future in futures]


def connect(hosts: Sequence[HostfileEntry], stack: ExitStack) -> tuple[list[Remote], list[str]]:
    """The connections, which `stack` closes, and a line for each host that could not be connected."""
    if not shutil.which("ssh"):
        raise UsageError(
            "ssh is missing, expected OpenSSH's client: install openssh-client (Debian, Ubuntu) or "
            "openssh-clients (Fedora, RHEL)"
        )
    # About ten files for each host.
    present, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, max(present, 256 + 20 * len(hosts))), most))

    def attempt(host: HostfileEntry) -> Remote | str:
        try:
            remote = Remote(host.name, host.user)
            stack.callback(remote.close)
            remote.open()
        except RemoteError as error:
            return f"{host.name}: {error}"
        return remote

    results = each(hosts, attempt, [host.name for host in hosts])
    return (
        [result for result in results if isinstance(result, Remote)],
        [result for result in results if isinstance(result, str)],
    )
