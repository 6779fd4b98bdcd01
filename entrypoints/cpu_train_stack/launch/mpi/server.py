"""OpenSSH's server of a node. After SIGTERM, the ranks of all nodes save a checkpoint before this node ends.

A drained Kubernetes node, or `docker stop`, sends SIGTERM to the node's container. The node's watch reports it to
the launcher (node_watch), which asks the ranks to save. The sessions go on until the job has ended. Torch-free.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from cpu_train_stack.cli import signals

# The launcher counts the same time, and learns later that the node must end.
_LATER_SECONDS = 1


def serve(argv: Sequence[str], environ: Mapping[str, str], ends: Path, seconds: int) -> int:
    """Run the server until it ends. Returns its exit code.

    After the first SIGTERM, the server accepts no new session and creates `ends`, and its sessions may go on
    for `seconds`. After any other or a second signal, and with 0 seconds, the server ends at once.
    """
    sys.stdout.flush()
    # Handlers first: the default action of a signal would end this process and leave the server running.
    numbers, early = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM), list[int]()
    for number in numbers:
        signal.signal(number, lambda number, _frame: early.append(number))
    server = subprocess.Popen(argv, env=dict(environ))

    def end(number: int, _frame: FrameType | None) -> None:
        is_first = number == signal.SIGTERM and not ends.exists()
        if is_first and seconds:
            signals.adopt_orphans()  # before the server ends, because its sessions go on
            ends.touch()
            signal.alarm(seconds + _LATER_SECONDS)
        server.terminate()  # it stops listening; its sessions stay
        if not (is_first and seconds):
            sys.exit(128 + (signal.SIGTERM if number == signal.SIGALRM else number))

    for number in numbers:
        signal.signal(number, end)
    for missed in early:
        end(missed, None)
    code = server.wait()
    try:
        while ends.exists():
            os.wait()
    except ChildProcessError:
        pass  # the last session has ended
    return code
