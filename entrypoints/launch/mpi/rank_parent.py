"""One rank's parent: starts it and leaves word of its process and of its end for the node's watch.

mpirun itself tells neither: a rank that exits with an error without having spoken MPI ends nothing, and its exit
code is lost among those of the others.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from entrypoints import contract
from entrypoints.launch.mpi.node_watch import leave_word
from entrypoints.placement.detect import detect
from entrypoints.rank.start import python

_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> int:
    """Runs `argv` to its end. Returns its exit code, 128 + N for signal N."""
    folder = Path(os.environ.pop(contract.WATCH))
    place = detect(os.environ)
    # A signal that stops the job is the rank's to answer; this process waits for what comes of it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    child = subprocess.Popen(python("entrypoints", argv), preexec_fn=_like_a_child)
    word = {"pid": child.pid, "local_rank": place.local_rank}
    leave_word(folder, place.rank, word)
    code = child.wait()
    leave_word(folder, place.rank, {**word, "code": code, "at": time.time()})
    return code if code >= 0 else 128 - code


def _like_a_child() -> None:
    """Signals as usual; and no rank outlives its parent, which mpirun may have to kill."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
