"""`./inv watch` for jobs on hosts: `entrypoint watch` in the container of the first host, over ssh."""

import os
import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import BinaryIO

from invoke.exceptions import Exit
from paramiko import Channel, SSHException

from cpu_train_stack import contract
from tooling.basis.errors import UsageError
from tooling.basis.say import say
from tooling.hosts import commands
from tooling.hosts.record import Record, runs
from tooling.hosts.remote import NO_STATUS, connect

_KILLED = 137  # the exit code of a command in a container that ends
_INTERRUPT = b"\x03"  # what Ctrl-C sends
# Leave the alternate screen and show the cursor, if the command cannot: its container or the connection ended.
_RESTORE = b"\x1b[?1049l\x1b[?25h\x1b[0m\r\n"
_RESIZE_SECONDS = 0.2  # between two looks at the size of the terminal

Size = tuple[int, int]  # columns, lines


def watch(job: Record) -> None:
    """Show the job until it ends. Raises Exit with the exit code of the command."""
    if not runs(job):
        how = f" with exit code {job.exit_code}" if job.ended else ""
        raise UsageError(
            f"job {job.name} has ended{how}, expected a running job: ./inv logs --name {job.name} shows its output"
        )
    size = _size if sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb" else None
    with ExitStack() as stack:
        remotes, failures = connect(job.hosts[:1], stack)
        if failures:
            raise UsageError("\n".join(failures))
        command = commands.watch(job.containers[0], size is not None)
        try:
            channel = remotes[0].session(command, size() if size else None)
            code = copy(channel, sys.stdout.buffer, size)
        except (OSError, SSHException, EOFError) as error:
            raise UsageError(
                f"{remotes[0].name}: the connection has ended ({error}): run ./inv watch again"
            ) from error
    if code == NO_STATUS:
        raise UsageError(f"{job.hosts[0].name}: the connection has ended: run ./inv watch again")
    if code == _KILLED:
        say(f"job {job.name} has ended: ./inv logs --name {job.name} shows its output")
    elif code:
        raise Exit(code=code)


def copy(channel: Channel, target: BinaryIO, size: Callable[[], Size] | None) -> int:
    """Copy the output of a command to `target`, and return its exit code, NO_STATUS if the connection broke.

    `size`: of this terminal, None without one. The command gets its changes, and Ctrl-C.
    """
    known = size() if size else None
    channel.settimeout(_RESIZE_SECONDS)
    interrupted = False
    while True:
        try:
            chunk = channel.recv(1 << 16)
            if not chunk:
                break
            target.write(chunk)
            target.flush()
        except TimeoutError:
            pass
        except KeyboardInterrupt:
            if size is None:
                raise
            if interrupted:  # the command does not answer
                target.write(_RESTORE)
                target.flush()
                return contract.INTERRUPTED_EXIT_CODE
            interrupted = True
            channel.sendall(_INTERRUPT)
        if size and size() != known:
            known = size()
            channel.resize_pty(*known)
    code = int(channel.recv_exit_status())
    if code in (NO_STATUS, _KILLED) and size:
        target.write(_RESTORE)
        target.flush()
    return contract.INTERRUPTED_EXIT_CODE if interrupted else code


def _size() -> Size:
    found = shutil.get_terminal_size()
    return found.columns, found.lines
