"""`watch [FOLDER]`: follow a job by its records, on a terminal or as lines. Torch-free."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from entrypoints import contract
from entrypoints.cli.errors import UsageError
from entrypoints.cli.options import option, parse_options, positive_seconds
from entrypoints.records.record import Event
from entrypoints.watch import plain, snapshot
from entrypoints.watch.snapshot import Snapshot
from entrypoints.watch.tail import Tail

_POLL_SECONDS = 1.0
_DEFAULT_INTERVAL = 10.0


@dataclass(frozen=True)
class Options:
    """The command line of `watch`."""

    folder: str = option(
        "", f"the --output_dir of the job, or a folder above it (default: {contract.OUTPUT})", contract.OUTPUT,
        nargs="?", metavar="FOLDER",
    )  # fmt: skip
    interval: float = option(
        "--interval", "seconds between two lines where the output is no terminal (default: %(default)s)",
        _DEFAULT_INTERVAL, type=positive_seconds, metavar="SECONDS",
    )  # fmt: skip


def main(argv: list[str]) -> int:
    options = parse_options(Options, argv, "watch", "Follow a job: progress, speed, and what each rank waits for.")
    return watch(Path(options.folder), options.interval)


def watch(folder: Path, interval: float = _DEFAULT_INTERVAL) -> int:
    """Show the job until it ends. Returns 0, or 130 after Ctrl-C. Raises UsageError if there is no such folder."""
    if not folder.is_dir():
        raise UsageError(f"watch: '{folder}' is not a folder, expected the --output_dir of a job")
    look = _looks(folder)
    try:
        if sys.stdout.isatty() and _has_rich():
            _on_screen(look)
        else:
            _as_lines(look, interval)
    except KeyboardInterrupt:
        return contract.INTERRUPTED_EXIT_CODE
    return 0


def _looks(folder: Path) -> Callable[[], Snapshot]:
    """A function that returns the next snapshot, after waiting for the job's first record."""
    tail = Tail(folder)

    def look() -> Snapshot:
        job = tail.read()
        if job is None:
            print(f"waiting for the first record of a job in '{folder}'", file=sys.stderr, flush=True)
        while job is None:
            time.sleep(_POLL_SECONDS)
            job = tail.read()
        return snapshot.of(job, time.time())

    return look


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
        time.sleep(_POLL_SECONDS)
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

    from entrypoints.watch import screen

    console = Console()
    now = look()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(screen.render(now, console.width, console.height), refresh=True)
            if now.is_over:
                break
            time.sleep(_POLL_SECONDS)
            now = look()
    console.print(screen.render(now, console.width, console.height))
