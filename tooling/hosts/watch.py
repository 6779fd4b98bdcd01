"""`./inv watch` for jobs on hosts: `entrypoint watch` in the container of the first host, over ssh."""

import os
import sys
from contextlib import ExitStack

from invoke.exceptions import Exit

from tooling.basis.errors import UsageError
from tooling.basis.say import say
from tooling.engine import ssh
from tooling.hosts import commands
from tooling.hosts.record import Record, runs

_KILLED = 137  # the exit code of a command in a container that ends
# Leave the alternate screen and show the cursor, if the command cannot: its container or the connection ended.
_RESTORE = b"\x1b[?1049l\x1b[?25h\x1b[0m\r\n"


def watch(job: Record) -> None:
    """Show the job until it ends. Raises Exit with the exit code of the command."""
    if not runs(job):
        how = f" with exit code {job.exit_code}" if job.ended else ""
        raise UsageError(
            f"job {job.name} has ended{how}, expected a running job: ./inv logs --name {job.name} shows its output"
        )
    terminal = all(map(os.isatty, (0, 1))) and os.environ.get("TERM", "dumb") != "dumb"
    with ExitStack() as stack:
        remotes, failures = ssh.connect(job.hosts[:1], stack)
        if failures:
            raise UsageError("\n".join(failures))
        code = remotes[0].show(commands.watch(job.containers[0], terminal), terminal)
    if terminal and code in (ssh.FAILED, _KILLED):
        sys.stdout.buffer.write(_RESTORE)
        sys.stdout.flush()
    if code == ssh.FAILED:
        raise UsageError(f"{job.hosts[0].name}: the connection has ended: run ./inv watch again")
    if code == _KILLED:
        say(f"job {job.name} has ended: ./inv logs --name {job.name} shows its output")
    elif code:
        raise Exit(code=code)
