"""What a rank says of the exception that ends it: the first one to fail all of it, every later one a line.

A job of many ranks fails on all of them: by the same mistake, or because one has gone. Their tracebacks, mixed,
would hide the one that tells why. Torch-free: the place where the ranks met is a parameter.
"""

from __future__ import annotations

import re
import sys
import threading
import traceback
from typing import Callable, Protocol, TypeVar

from entrypoints.placement.detect import DistributedEnvironment
from entrypoints.rank import exit as failure
from entrypoints.rank import frames

T = TypeVar("T")

_SECONDS = 2.0
_TICKETS, _FIRST = "cpu-train-stack/failed", "cpu-train-stack/failed-first"
# What the backends say where another rank has gone. ccl's own, then gloo's (its transport/tcp/pair.cc).
_GONE = re.compile(
    r"^ccl: .* cannot complete: |\[.*gloo.*\].*(closed by peer|reset by peer|Broken pipe)", re.DOTALL
)
# Where in its own sources gloo was.
_SOURCE = re.compile(r"\[\S*/gloo/\S*\] ")
_LONGEST = 300


class Meeting(Protocol):
    """What is used of torch.distributed.Store."""

    def add(self, key: str, amount: int, /) -> int: ...
    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...


def say(
    error: BaseException, environment: DistributedEnvironment, meeting: Meeting | None, is_script: bool
) -> None:
    """On standard error the traceback, or one line where another rank's says why; for the agent the cause.

    Those that fail later wait, a moment at most, until the first one has told: its log stands before theirs.
    """
    frames.strip(error, is_script)
    several, rank = environment.world_size > 1, environment.rank
    if several and blames_another(error):
        failure.record(error)
        _print_line(error, rank, is_script, "another rank has gone")
        return
    first = _first_to_fail(meeting, rank) if several and meeting is not None else str(rank)
    failure.record(error)
    if first != str(rank):
        _print_line(error, rank, is_script, f"{first or 'another rank'} has failed before")
        return
    _print_all(error, several)
    if several and meeting is not None:
        _answer(lambda: meeting.set(_FIRST, f"rank {rank}"))


def _print_all(error: BaseException, several: bool) -> None:
    # torch's hook puts the rank before each line. Any other is the script's own.
    if several or not _is_default(sys.excepthook.__module__):
        sys.excepthook(type(error), error, error.__traceback__)
        return
    sys.stderr.write("".join(traceback.format_exception(type(error), error, error.__traceback__)))
    sys.stderr.flush()


def _is_default(module: str) -> bool:
    return module == "sys" or module.startswith("torch.distributed")


def blames_another(error: BaseException) -> bool:
    """Whether a rank fails only because another one has ended."""
    return isinstance(error, RuntimeError) and bool(_GONE.search(str(error)))


def _print_line(error: BaseException, rank: int, is_script: bool, why: str) -> None:
    text = " ".join(traceback.format_exception_only(type(error), error)[-1].split())
    text = _SOURCE.sub("", text.partition(" This is typically caused by")[0])  # gloo's advice: look at that rank
    place = frames.position(error, is_script)
    text = text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."
    print(f"rank {rank}: {text}{f' ({place})' if place else ''}; {why}", file=sys.stderr, flush=True)


def _first_to_fail(meeting: Meeting, rank: int) -> str:
    """This rank's number where it is the first, or nobody answers; else who was, empty if that is not known."""
    ticket = _answer(lambda: meeting.add(_TICKETS, 1))
    if ticket is None or ticket == 1:
        return str(rank)
    told = _answer(lambda: meeting.get(_FIRST))  # waits until it is there
    return told.decode() if told else ""


def _answer(ask: Callable[[], T]) -> T | None:
    """What `ask` returns within a moment: whoever keeps the store may have ended, or be stopped."""
    answers: list[T] = []

    def asked() -> None:
        try:
            answers.append(ask())
        except (RuntimeError, ValueError):
            return

    asking = threading.Thread(target=asked, daemon=True)
    asking.start()
    asking.join(_SECONDS)
    return answers[0] if answers else None
