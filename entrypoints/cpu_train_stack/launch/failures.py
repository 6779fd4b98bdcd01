"""What ends a job, and the launcher's line about it: a failed rank, a lost node or a signal. Torch-free."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cpu_train_stack.cli.say import say
from cpu_train_stack.records.writer import Failed


@dataclass(frozen=True)
class Failure:
    """`text`: the launcher's line. `exit_code`: the launcher's own, if this failure is the cause.

    `rank`: -1 if it is not one rank's. `at`: when it was noticed, in seconds since the epoch. `head_start`: how
    many seconds earlier it may have happened: the peers of a killed rank fail because of it, and may be noticed
    first. `terminated`: SIGTERM ended the rank, as launchers do after a failure. `printed`: the rank has printed
    its error.
    """

    text: str
    exit_code: int
    rank: int = -1
    at: float = 0.0
    head_start: float = 0.0
    terminated: bool = False
    printed: bool = False


def failed_rank(
    rank: int,
    local_rank: int,
    node: object,
    returncode: int,
    *,
    out_of_memory: bool = False,
    at: float = 0.0,
    head_start: float = 0.0,
    printed: bool = False,
) -> Failure:
    """`node`: its name or index. `returncode`: -N for signal N, as in subprocess."""
    exit_code, how = how_it_ended(returncode, out_of_memory)
    text = f"rank {rank} (local {local_rank}, node {node}) {how}"
    return Failure(text, exit_code, rank, at, head_start, returncode == -signal.SIGTERM, printed)


def for_records(failures: Iterable[Failure]) -> list[Failed]:
    """The failures for the ranks' records, except for ranks that a launcher ended because of another failure.

    Without the head start, the consequences of a failure would seem to come first.
    """
    return [
        Failed(failure.rank, failure.text, failure.at - failure.head_start)
        for failure in failures
        if not failure.terminated
    ]


def how_it_ended(returncode: int, out_of_memory: bool = False) -> tuple[int, str]:
    """A process's exit code, as a shell reports it, and how it ended. `returncode`: as for `failed_rank`."""
    if returncode >= 0:
        return returncode, f"exited with code {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:  # a real-time signal has no name
        name = f"signal {-returncode}"
    cause = ": out of memory (the container's limit)" if out_of_memory else ""
    return 128 - returncode, f"was killed by {name}{cause}"


def first_failure(failures: Iterable[Failure]) -> Failure:
    """The failure that caused the others: the earliest. Terminated ranks come last."""
    return min(failures, key=lambda failure: (failure.terminated, failure.at - failure.head_start))


def report(failures: Iterable[Failure]) -> int:
    """Print the first failure's line, unless its rank has printed the error. Returns the exit code."""
    cause = first_failure(failures)
    if not cause.printed:
        say(cause.text)
    return cause.exit_code


def report_signal(number: int) -> int:
    """Print the line of a launcher that a signal has stopped. Returns the exit code, as a shell reports it."""
    exit_code, how = how_it_ended(-number)
    say(f"the job {how.replace('killed', 'stopped')}")
    return exit_code


def keep_hangup_ignored() -> None:
    """If SIGHUP is ignored, as under nohup, let no library of this process set a handler: torchrun's agent does.

    A handler would also let the signal end the ranks. They inherit that a signal is ignored, but no handler.
    """
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        return
    set_handler: Any = signal.signal

    def set_others(number: int, handler: Any) -> Any:
        return signal.SIG_IGN if number == signal.SIGHUP else set_handler(number, handler)

    vars(signal)["signal"] = set_others
