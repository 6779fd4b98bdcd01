"""What a rank says of the exception that ends it: the first one to fail all of it, every later one a line.

A job of many ranks fails on all of them: by the same mistake, or because one has gone. Their tracebacks, mixed,
would hide the one that tells why. Torch-free: the place where the ranks met is a parameter.
"""

from __future__ import annotations

import re
import sys
import threading
import traceback
from typing import Protocol

from entrypoints import frames
from entrypoints.environment import DistributedEnvironment

_SECONDS = 2.0
_TICKETS, _FIRST = "cpu-train-stack/failed", "cpu-train-stack/failed-first"
# What the backends say where another rank has gone. ccl's own, then gloo's (its transport/tcp/pair.cc).
_GONE = re.compile(r"^ccl: .*\bhas ended\b|\[.*gloo.*\].*(closed by peer|reset by peer|Broken pipe)", re.DOTALL)
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
    """On standard error: the traceback, or one line where another rank's says why."""
    frames.strip(error, is_script)
    several = environment.world_size > 1
    if several and blames_another(error):
        print(_line(error, environment.rank, is_script, "another rank has gone"), file=sys.stderr, flush=True)
        return
    first = _first_to_fail(meeting, environment.rank) if several and meeting is not None else environment.rank
    if first != environment.rank:
        print(
            _line(error, environment.rank, is_script, f"rank {first} has failed before"),
            file=sys.stderr,
            flush=True,
        )
        return
    # torch's puts the rank before each line. Any other is the script's own.
    if several or not _is_default(sys.excepthook.__module__):
        sys.excepthook(type(error), error, error.__traceback__)
        return
    # In one piece: another rank may write between two.
    sys.stderr.write("".join(traceback.format_exception(type(error), error, error.__traceback__)))
    sys.stderr.flush()


def _is_default(module: str) -> bool:
    return module == "sys" or module.startswith("torch.distributed")


def blames_another(error: BaseException) -> bool:
    """Whether a rank fails only because another one has ended."""
    return isinstance(error, RuntimeError) and bool(_GONE.search(str(error)))


def _line(error: BaseException, rank: int, is_script: bool, why: str) -> str:
    text = " ".join(traceback.format_exception_only(type(error), error)[-1].split())
    text = _SOURCE.sub("", text.partition(" This is typically caused by")[0])  # gloo's advice: look at that rank
    place = frames.position(error, is_script)
    text = text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."
    return f"rank {rank}: {text}{f' ({place})' if place else ''}; {why}"


def _first_to_fail(meeting: Meeting, rank: int) -> int:
    """The rank that failed first: this one too where nobody answers in time."""
    answers: list[int] = []

    def ask() -> None:
        try:
            if meeting.add(_TICKETS, 1) == 1:
                meeting.set(_FIRST, str(rank))
                answers.append(rank)
            else:
                answers.append(int(meeting.get(_FIRST)))
        except (RuntimeError, ValueError):  # whoever keeps the store has ended
            return

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_SECONDS)
    return answers[0] if answers else rank
