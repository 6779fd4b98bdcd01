"""The command `watch`: lines in a pipe, and a live view on a real terminal."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.records import job
from cpu_train_stack.watch import main, snapshot
from tests import synthetic_records
from tests.signals import as_at_a_terminal
from tests.synthetic_records import BEGIN
from tests.unit.entrypoints.watch.test_snapshot import without_end

pytest.importorskip("rich", reason="older pins have no rich: watch prints lines there")
from rich.cells import cell_len

from cpu_train_stack.watch import screen

COMMAND = (sys.executable, "-m", "cpu_train_stack", "watch")


def test_lines_in_a_pipe(tmp_path: Path) -> None:
    synthetic_records.write(tmp_path, slow={1: {"read": 0.5}})
    done = subprocess.run([*COMMAND, str(tmp_path)], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    title, line, ending = done.stdout.splitlines()
    assert title.startswith("bert-base-uncased, 4 ranks")
    assert re.match(r"\d\d:\d\d:\d\d  step 100/100 \(100%\), loss 0\.\d+, accuracy 0\.\d+, .* samples/s", line)
    assert ending.startswith("finished 100 steps")


def test_the_records_of_an_earlier_job_are_not_shown(tmp_path: Path) -> None:
    synthetic_records.write(tmp_path)
    with subprocess.Popen(
        [*COMMAND, str(tmp_path), f"--since={BEGIN + 1}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("waiting for the first record of a job")
        synthetic_records.write(tmp_path, world_size=1, change=lambda start: replace(start, time=BEGIN + 2))
        assert "1 rank on 1 node" in process.communicate(timeout=60)[0]


def test_a_job_that_left_no_records_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the job has ended, and left no records in"):
        main.watch(tmp_path, runs=lambda: False)


@pytest.mark.parametrize("variables", [{"TERM": "dumb"}, {"PYTHONIOENCODING": "ascii"}])
def test_a_terminal_that_cannot_show_curves_gets_lines(variables: dict[str, str], tmp_path: Path) -> None:
    synthetic_records.write(tmp_path)
    with terminal(tmp_path, variables=variables) as (process, ours):
        assert b"\x1b[" not in read_until(ours, b"finished 100 steps")
        assert process.wait(30) == 0


def test_sigterm_restores_the_terminal(tmp_path: Path) -> None:
    without_end(synthetic_records.write(tmp_path))
    with terminal(tmp_path) as (process, ours):
        read_until(ours, b"rank 3")
        process.terminate()
        read_until(ours, b"\x1b[?1049l")
        assert process.wait(30) == 128 + signal.SIGTERM


def test_a_folder_that_does_not_exist_is_a_usage_error(tmp_path: Path) -> None:
    done = subprocess.run([*COMMAND, f"{tmp_path}/none"], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stderr == f"error: watch: '{tmp_path}/none' is not a folder, expected the --output_dir of a job\n"


@contextmanager
def terminal(
    folder: Path, columns: int = 80, rows: int = 24, variables: Mapping[str, str] = MappingProxyType({})
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """`watch` in a pseudo-terminal, and the terminal's other end."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8", **variables}
    for name in ("COLUMNS", "LINES"):
        environment.pop(name, None)
    process = subprocess.Popen(
        [*COMMAND, str(folder)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        start_new_session=True,
        preexec_fn=as_at_a_terminal,
    )
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def read_until(terminal: int, text: bytes, timeout: float = 30) -> bytes:
    found, deadline = b"", time.monotonic() + timeout
    while text not in found:
        assert time.monotonic() < deadline, found.decode(errors="replace")
        if select.select([terminal], [], [], 0.2)[0]:
            found += os.read(terminal, 1 << 16)
    return found


def test_the_live_view_ends_with_the_job(tmp_path: Path) -> None:
    synthetic_records.write(tmp_path)
    with terminal(tmp_path) as (process, ours):
        read_until(ours, b"finished 100 steps")
        assert process.wait(30) == 0


def test_ctrl_c_ends_the_live_view_without_a_traceback(tmp_path: Path) -> None:
    without_end(synthetic_records.write(tmp_path))
    with terminal(tmp_path) as (process, ours):
        shown = read_until(ours, b"rank 3")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        while select.select([ours], [], [], 0.2)[0]:
            try:
                shown += os.read(ours, 1 << 16)
            except OSError:  # the other end is closed
                break
        assert b"Traceback" not in shown


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (200, 50), (40, 10)])
@pytest.mark.parametrize("world_size", [1, 4, 64])
def test_the_view_fits_the_terminal(columns: int, rows: int, world_size: int, tmp_path: Path) -> None:
    from rich.console import Console

    slow = {1: {"compute": 1.3}} if world_size > 1 else {}
    synthetic_records.write(tmp_path, world_size=world_size, ranks_per_node=8, slow=slow)
    now = snapshot.of(job.read(tmp_path), BEGIN + 60)
    console = Console(width=columns, height=rows, record=True, file=io.StringIO(), color_system=None)
    console.print(screen.render(now, columns, rows))
    lines = console.export_text().splitlines()
    assert len(lines) <= rows
    assert all(cell_len(line) <= columns for line in lines)
    assert lines[1].startswith("step 100/100")
    if rows > 20:
        assert any("is slower than the others by 0." in line for line in lines) == (world_size > 1)
        assert any(line.startswith("rank ") and "█" in line for line in lines)
        assert any("finished" in line for line in lines)


def test_a_curve_rises_from_the_lower_left_to_the_upper_right() -> None:
    assert screen.plot([(0, 0.0), (100, 1.0)], 4, 2) == ["⠀⠀⡠⠊", "⡠⠊⠀⠀"]
    assert screen.plot([(0, 5.0), (10, 5.0)], 3, 1) == ["⠤⠤⠤"]
