"""A rank that is stopped records that, and has a report."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cpu_train_stack.rank import worker
from cpu_train_stack.records import job
from tests.unit.entrypoints import ROOT

TRAINS = """
import multiprocessing
import signal
import sys
import time
from pathlib import Path

from cpu_train_stack.rank import worker
from cpu_train_stack.records import writer
from cpu_train_stack.records.record import Start

worker.record_sigterm()
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "a script without a training has another handler"
writer.begin(Path(sys.argv[1]), Start(time.time(), last_step=20))
fork = multiprocessing.get_context("fork")
runs = fork.Event()
child = fork.Process(target=lambda: (runs.set(), time.sleep(60)))
child.start()
runs.wait()
child.terminate()
child.join()
print(child.exitcode, flush=True)
time.sleep(60)
"""


def test_sigterm_ends_a_rank_with_a_report(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TRAINS, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as rank:
        assert rank.stdout is not None
        assert rank.stdout.readline() == f"{-signal.SIGTERM}\n"
        assert job.read(tmp_path).end is None, "a child has recorded the end"
        rank.terminate()
        assert rank.wait(30) == -signal.SIGTERM
    end = job.read(tmp_path).end
    assert end is not None
    assert (end.name, end.text) == ("stop", "SIGTERM")
    assert "Stopped by SIGTERM after 0 of 20 steps" in (tmp_path / "report.html").read_text()


def test_ctrl_c_while_torch_is_imported_prints_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise KeyboardInterrupt")
    command = [sys.executable, "-m", "cpu_train_stack.rank.worker", "run", "x.py"]
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ, timeout=60)
    assert (done.returncode, done.stderr) == (130, "")


class Library:
    """A stand-in for the libraries of the process."""

    def __init__(self, *functions: str) -> None:
        self.called: list[str] = []
        for name in functions:
            setattr(self, name, lambda name=name: self.called.append(name))


def test_a_rank_initializes_the_openmp_library_if_one_is_preloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    for library in (Library("omp_get_num_procs"), Library()):
        monkeypatch.setattr(ctypes, "CDLL", lambda _, library=library: library)
        worker._initialize_openmp()
        assert library.called == [name for name in ("omp_get_num_procs",) if hasattr(library, name)]
