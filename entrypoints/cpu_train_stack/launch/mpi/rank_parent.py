"""One rank's parent: start the rank, and write its PID and its exit code for the node's watch.

mpirun reports neither: a rank that fails without having called MPI does not end the job, and mpirun does not show
which rank had which exit code.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cpu_train_stack import contract
from cpu_train_stack.cli import account
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.interpreter import python_command
from cpu_train_stack.cli.signals import die_with_parent
from cpu_train_stack.launch.failures import failed_rank, for_records
from cpu_train_stack.launch.mpi import hydra, ssh_user
from cpu_train_stack.launch.mpi.node_watch import write_state
from cpu_train_stack.placement.detect import detect
from cpu_train_stack.rank.exit import report_usage_error
from cpu_train_stack.records.writer import Failed
from cpu_train_stack.report import at_end


def main(argv: list[str]) -> int:
    """Run `entrypoint ARGUMENTS...`. Returns its exit code, 128 + N for signal N. `argv`: of hydra.escape."""
    folder = Path(os.environ.pop(contract.WATCH))
    os.environ[contract.DRAIN] = str(folder)
    ssh_user.forget(os.environ)
    account.complete()  # sshd passes none of its variables to a rank
    try:
        place = detect(os.environ)
    except UsageError as error:
        return report_usage_error(error)
    # The rank handles the signals that stop the job. This process waits for the rank.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    own = tempfile.TemporaryDirectory(prefix="rank-")
    recorded = at_end.Failures(Path(own.name))
    child = subprocess.Popen(python_command("cpu_train_stack", hydra.unescape(argv)), preexec_fn=_set_up_rank)
    state = {"pid": child.pid, "local_rank": place.local_rank}
    write_state(folder, place.rank, state)
    code = child.wait()
    write_state(folder, place.rank, {**state, "code": code, "at": time.time()})
    if code:
        found = failed_rank(place.rank, place.local_rank, place.node_rank, code, at=time.time())
        # Without a failed rank, a rank that SIGTERM ends was stopped with the job.
        ended = for_records([found]) or [Failed(place.rank, "SIGTERM", found.at, "stop")]
        recorded.record(ended, and_report=place.local_rank == 0)
    own.cleanup()
    return code if code >= 0 else 128 - code


def _set_up_rank() -> None:
    """In the rank: handle signals as usual, and end with the parent, which mpirun may kill."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    die_with_parent()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
