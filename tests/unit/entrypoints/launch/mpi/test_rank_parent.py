"""A rank's parent records how the rank ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from cpu_train_stack import contract
from cpu_train_stack.records import job
from tests.unit.entrypoints import ROOT

RANK = """
import os
import signal
import sys
import time
from pathlib import Path

from cpu_train_stack.records import writer
from cpu_train_stack.records.record import Start

writer.begin(Path(sys.argv[1]), Start(time.time(), last_step=20))
os.kill(os.getpid(), signal.SIGTERM)
"""
PARENT = """
import sys

from cpu_train_stack.launch.mpi import rank_parent

rank_parent.python_command = lambda *_: [sys.executable, "-c", *sys.argv[1:]]
sys.exit(rank_parent.main([]))
"""


def test_a_rank_that_was_stopped_has_a_report(tmp_path: Path) -> None:
    output, watch = tmp_path / "output", tmp_path / "watch"
    watch.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", PARENT, RANK, str(output)],
        check=False,
        timeout=60,
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], contract.WATCH: str(watch)},
    )
    assert done.returncode == contract.TERMINATED_EXIT_CODE == 128 + signal.SIGTERM
    end = job.read(output).end
    assert end is not None
    assert (end.name, end.text) == ("stop", "SIGTERM")
    assert "Stopped by SIGTERM after 0 of 20 steps" in (output / "report.html").read_text()
