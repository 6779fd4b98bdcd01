"""`watch [FOLDER]`: follow a job by its records, on a terminal or as lines. Torch-free."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.options import number, option, parse_options, positive_seconds
from cpu_train_stack.cli.say import say
from cpu_train_stack.records.job import RecordedJob
from cpu_train_stack.records.record import Event
from cpu_train_stack.watch import plain, snapshot
from cpu_train_stack.watch.snapshot import Snapshot
from cpu_train_stack.watch.tail import Tail

_POLL_SECONDS = 1.0
_REST = 50.0  # a pause, in multiples of the CPU time of a snapshot: 0.1 s for 64 ranks with 20,000 steps
# Without a line for so long, ask whether the job still runs.
_DOUBT_SECONDS = 10.0
_DEFAULT_INTERVAL = 10.0


@dataclass(frozen=True)
class WatchOptions:
    """The command line of `watch`."""

    folder: str = option(
        "", f"the --output_dir of the job, or a folder above it (default: {contract.OUTPUT})", contract.OUTPUT,
        nargs="?", metavar="FOLDER",
    )  # fmt: skip
    interval: float = option(
        "--interval", "seconds between two lines if the output is not a terminal (default: %(default)s)",
        _DEFAULT_INTERVAL, type=positive_seconds, metavar="SECONDS",
    )  # fmt: skip
    since: float = option(
        "--since", "wait for a job that starts after this time, in seconds since the epoch", 0.0,
        type=number(0, 1e11), metavar="TIME",
    )  # fmt: skip


def main(argv: list[str]) -> int:
    options = parse_options(
        WatchOptions, argv, "watch", "Follow a job: progress, speed, and what each rank waits for."
    )
    return watch(Path(options.folder), options.interval, since=options.since)


def watch(
    folder: Path, interval: float = _DEFAULT_INTERVAL, runs: Callable[[], bool] | None = None, since: float = 0.0
) -> int:
    """Show the job until it ends. Returns 0, or 130 after Ctrl-C. Raises UsageError if there is no such folder.

    `runs`: whether the job's containers run, for a caller who can find out. `since`: the records of a job that
    started earlier (seconds since the epoch) are those of another job.
    """
    if not folder.is_dir():
        raise UsageError(f"watch: '{folder}' is not a folder, expected the --output_dir of a job")
    look = _looks(folder, runs, since)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        if _is_screen():
            _on_screen(look)
        else:
            _as_lines(look, interval)
    except KeyboardInterrupt:
        return contract.INTERRUPTED_EXIT_CODE
    return 0


def _looks(folder: Path, runs: Callable[[], bool] | None, since: float) -> Callable[[], Snapshot]:
    """A function that returns the next snapshot, after a pause. The first one waits for the job's first record."""
    tail = Tail(folder)
    pause = 0.0

    def read() -> RecordedJob | None:
        job = tail.read()
        return None if job is None or job.first.start.time < since else job

    def look() -> Snapshot:
        nonlocal pause
        time.sleep(pause)
        began = time.process_time()
        job = read()
        if job is None:
            say(f"waiting for the first record of a job in '{folder}'")
        while job is None:
            if runs is not None and not runs():
                raise UsageError(f"watch: the job has ended, and left no records in '{folder}'")
            time.sleep(_POLL_SECONDS)
            job = read()
        now = time.time()
        is_in_doubt = now - job.time > _DOUBT_SECONDS
        found = snapshot.of(job, now, runs() if runs is not None and is_in_doubt else None)
        pause = max(_POLL_SECONDS, _REST * (time.process_time() - began))
        return found

    return look


def _terminate(signum: int, _frame: object) -> None:
    """Exit by an exception, so that the terminal is restored."""
    sys.exit(128 + signum)


def _is_screen() -> bool:
    """Whether standard output is a terminal that can show the curves, and rich is installed."""
    is_terminal = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    return is_terminal and "utf" in (sys.stdout.encoding or "").lower() and _has_rich()


def _as_lines(look: Callable[[], Snapshot], interval: float) -> None:
    now = look()
    shown: list[Event] = [*now.events]  # what happened before is not news
    print(now.title, flush=True)
    next_line = 0.0
    while True:
        for event in now.events[len(shown) :] if now.events[: len(shown)] == shown else now.events:
            print(plain.event(event), flush=True)
        shown = [*now.events]
        if now.is_over or time.monotonic() >= next_line:
            print(plain.line(now), flush=True)
            next_line = time.monotonic() + interval
        if now.is_over:
            print(plain.ending(now), flush=True)
            return
        now = look()


def _has_rich() -> bool:
    try:
        import rich  # noqa: F401 - only whether it is there
    except ImportError:
        return False
    return True


def _on_screen(look: Callable[[], Snapshot]) -> None:
    from rich.console import Console
    from rich.live import Live

    from cpu_train_stack.watch import screen

    console = Console()
    now = look()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(screen.render(now, console.width, console.height), refresh=True)
            if now.is_over:
                break
            now = look()
    console.print(screen.render(now, console.width, console.height))
