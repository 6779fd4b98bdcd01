"""The output of failing ranks: the traceback of the first rank to fail, one line from every other. Torch-free.

All ranks of a job fail, from the same mistake or because another rank has ended. Mixed tracebacks would hide the
cause. Frames of this package that lead to the job's code are removed.
"""

from __future__ import annotations

import dis
import os
import re
import sys
import threading
import traceback
from pathlib import Path
from types import FrameType, TracebackType
from typing import Callable, Protocol, TypeVar

from cpu_train_stack.cli.say import say
from cpu_train_stack.placement.detect import DistributedEnvironment
from cpu_train_stack.rank.exit import record

T = TypeVar("T")

_ROOM = f"{Path(__file__).parent}{os.sep}"
_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"
_STORE_SECONDS = 2.0
_TICKETS, _FIRST = "cpu-train-stack/failed", "cpu-train-stack/failed-first"
# The backends' errors after another rank has ended: ccl's own, then gloo's (its transport/tcp/pair.cc).
_PEER_ENDED = re.compile(
    r"^ccl: .* cannot complete: |\[.*gloo.*\].*(closed by peer|reset by peer|Broken pipe)", re.DOTALL
)
_GLOO_SOURCE_LINE = re.compile(r"\[\S*/gloo/\S*\] ")
_LONGEST = 300
# What Python raises where a program is wrong. Other errors in this package come from what it calls for the script:
# a function of the script that does not accept an argument, or a torch operator that gets the wrong shape. What a
# `raise` of this package raises is for the script: a module does not have a name.
_MISTAKES = (AttributeError, NameError, LookupError)
_RAISE = dis.opmap["RAISE_VARARGS"]


class Store(Protocol):
    """The used part of torch.distributed.Store."""

    def add(self, key: str, amount: int, /) -> int: ...
    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...


def report(
    error: BaseException, environment: DistributedEnvironment, store: Store | None, is_script: bool
) -> None:
    """Record `error` for the agent, and print its traceback, or one line if another rank failed first.

    A rank that fails later waits for the first rank's traceback, at most _STORE_SECONDS, so that its line follows.
    `store`: the ranks' own, None if they have none. `is_script`: as for `strip`.
    """
    strip(error, is_script)
    several, rank = environment.world_size > 1, environment.rank
    if several and blames_peer(error):
        record(error)
        _print_line(error, rank, is_script, "another rank has ended")
        return
    first = _first_to_fail(store, rank) if several and store is not None else str(rank)
    record(error)
    if first != str(rank):
        _print_line(error, rank, is_script, f"{first or 'another rank'} failed first")
        return
    _print_traceback(error, several)
    if several and store is not None:
        _within_moments(lambda: store.set(_FIRST, f"rank {rank}"))


def strip(error: BaseException, is_script: bool) -> None:
    """Remove the frames that are not the job's, from the error and from its causes.

    `is_script`: the job is a user's script: remove all frames of this package. Otherwise, remove only the
    frames that lead to the job. A mistake of this package keeps its frames, which show what to fix.
    """
    seen: set[int] = set()
    queue: list[BaseException | None] = [error]
    while queue:
        current = queue.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        current.__traceback__ = _stripped(current, is_script)
        queue += [current.__cause__, current.__context__]


def position(error: BaseException, is_script: bool) -> str:
    """The last line outside of libraries, as `script.py:12`; empty if there is none."""
    found = ""
    current = error.__traceback__
    while current is not None:
        file = _file(current.tb_frame)
        if not _is_library(file) and not (is_script and _is_ours(file)):
            found = f"{file}:{current.tb_lineno}"
        current = current.tb_next
    return found


def blames_peer(error: BaseException) -> bool:
    """Whether a rank fails only because another rank has ended."""
    return isinstance(error, RuntimeError) and bool(_PEER_ENDED.search(str(error)))


def _stripped(error: BaseException, is_script: bool) -> TracebackType | None:
    first = error.__traceback__
    entries = []
    while first is not None:
        entries.append(first)
        first = first.tb_next
    while entries and _leads_to_job(entries[0].tb_frame):
        entries.pop(0)
    if is_script and not (isinstance(error, _MISTAKES) and entries and _is_mistake(entries[-1])):
        entries = [entry for entry in entries if not _is_ours(_file(entry.tb_frame))] or entries
    stripped: TracebackType | None = None
    for entry in reversed(entries):
        stripped = TracebackType(stripped, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return stripped


def _is_mistake(last: TracebackType) -> bool:
    """Whether Python itself, not a `raise`, raised the error in this package. `last`: the last entry."""
    code = last.tb_frame.f_code
    return _is_ours(code.co_filename) and code.co_code[last.tb_lasti] != _RAISE


def _leads_to_job(frame: FrameType) -> bool:
    """Frames of runpy and of this room (worker, script), which precede the job's."""
    file = _file(frame)
    return _is_runpy(file) or file.startswith(_ROOM)


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename


def _is_ours(file: str) -> bool:
    return file.startswith(_PACKAGE)


def _is_runpy(file: str) -> bool:
    return file == "<frozen runpy>" or file.endswith(os.sep + "runpy.py")


def _is_library(file: str) -> bool:
    return any(part in file for part in ("site-packages", "dist-packages", "<frozen ")) or _is_runpy(file)


def _print_traceback(error: BaseException, several: bool) -> None:
    # torch's hook prefixes each line with the rank. Any other hook is the script's own.
    if several or not _is_default(sys.excepthook.__module__):
        sys.excepthook(type(error), error, error.__traceback__)
        return
    sys.stderr.write("".join(traceback.format_exception(type(error), error, error.__traceback__)))
    sys.stderr.flush()


def _is_default(module: str) -> bool:
    return module == "sys" or module.startswith("torch.distributed")


def _print_line(error: BaseException, rank: int, is_script: bool, why: str) -> None:
    text = " ".join(traceback.format_exception_only(type(error), error)[-1].split())
    # gloo's advice, to read that rank's log, is in `why` already.
    text = _GLOO_SOURCE_LINE.sub("", text.partition(" This is typically caused by")[0])
    place = position(error, is_script)
    text = text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."
    say(f"rank {rank}: {text}{f' ({place})' if place else ''}; {why}")


def _first_to_fail(store: Store, rank: int) -> str:
    """`rank` if it is the first or the store does not respond, otherwise the first rank; empty if unknown."""
    ticket = _within_moments(lambda: store.add(_TICKETS, 1))
    if ticket is None or ticket == 1:
        return str(rank)
    first = _within_moments(lambda: store.get(_FIRST))  # blocks until the first rank has set it
    return first.decode() if first else ""


def _within_moments(ask: Callable[[], T]) -> T | None:
    """The result of `ask`, or None after _STORE_SECONDS: the store's process may have ended or be stopped."""
    answers: list[T] = []

    def run() -> None:
        try:
            answers.append(ask())
        except (RuntimeError, ValueError):
            return

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_STORE_SECONDS)
    return answers[0] if answers else None
