"""One fault on one cluster: the output of ./inv up, the time until its end, and its leftovers."""

import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.printable import last_line
from tooling.basis.paths import ROOT
from tooling.checks.faults.faults import Fault, Running
from tooling.cluster import leftovers
from tooling.cluster.run import CLUSTERS

START_SECONDS = 600.0
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Trial:
    """`detected_seconds`: from the fault to the message with its cause. None without a message. `ended_seconds`:
    from the fault to the end of ./inv up. `left`: the leftovers."""

    fault: str
    launcher: str
    detected_seconds: float | None
    ended_seconds: float
    exit_code: int
    left: tuple[str, ...]
    output: str


def inject(
    fault: Fault, launcher: str, options: Sequence[str], command: Sequence[str], ready: str, limit_seconds: float
) -> Trial:
    """Start `./inv up` with two nodes of one rank, inject the fault once the output matches `ready`, and wait.

    Raises UsageError if the output never matches, and TimeoutExpired if the job does not end within
    `limit_seconds` after the fault. In both cases, the job is terminated.
    """
    name = f"fault-{fault.name}-{launcher}"[:31]
    argv = [str(ROOT / "inv"), "up", f"--name={name}", f"--launcher={launcher}", "--nodes=2"]
    argv += [*fault.options, *options, "--", *command]
    log = CLUSTERS / f"{name}.fault.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as stream:
        process = subprocess.Popen(
            argv, stdout=stream, stderr=stream, cwd=ROOT, start_new_session=True, preexec_fn=_restore_sigint
        )
    try:
        _wait_for(ready, log, process)
        injected = time.monotonic()
        fault.inflict(Running(name, launcher, process))
        detected = None
        while process.poll() is None:
            if time.monotonic() - injected > limit_seconds:
                raise subprocess.TimeoutExpired(argv, limit_seconds, log.read_bytes())
            if detected is None and _is_detected(fault, launcher, log):
                detected = time.monotonic() - injected
            time.sleep(_POLL_SECONDS)
        ended = time.monotonic() - injected
        if detected is None and _is_detected(fault, launcher, log):
            detected = ended
        output = log.read_text(encoding="utf-8", errors="replace")
        left = leftovers.of(name)
        return Trial(fault.name, launcher, detected, ended, process.returncode, left, output)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(60)
        log.unlink()


@contextmanager
def small_file_system(folder: Path, megabytes: int) -> Iterator[Callable[[], object]]:
    """Mount a small file system in memory at `folder`, and yield a function that enlarges it.

    Does nothing if `megabytes` is 0. Raises UsageError if the user cannot mount file systems.
    """
    if not megabytes:
        yield lambda: None
        return
    argv = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0777", "tmpfs", str(folder)]
    if subprocess.run(argv, capture_output=True, check=False).returncode != 0:
        raise UsageError(
            f"cannot mount a file system at {folder}: run disk-full as root, or select other faults with --only"
        )
    larger = ["mount", "-o", f"remount,size={10 * megabytes}m", str(folder)]
    try:
        yield lambda: subprocess.run(larger, check=True)
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def _wait_for(ready: str, log: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not re.search(ready, output := log.read_text(encoding="utf-8", errors="replace")):
        ended = process.poll() is not None
        if ended or time.monotonic() > deadline:
            how = f"ended with exit code {process.returncode}" if ended else f"ran for {START_SECONDS:.0f} s"
            raise UsageError(f"the job {how} without printing {ready!r}: {last_line(output)}")
        time.sleep(_POLL_SECONDS)


def _is_detected(fault: Fault, launcher: str, log: Path) -> bool:
    cause = fault.causes[launcher]
    return bool(cause) and re.search(cause, log.read_text(encoding="utf-8", errors="replace")) is not None


def _restore_sigint() -> None:
    """Restore SIGINT: a shell starts background jobs with SIGINT ignored, which their children inherit."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
