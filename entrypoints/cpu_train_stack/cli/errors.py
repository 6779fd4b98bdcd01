"""Errors that the user can fix: bad usage, configuration or input."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from cpu_train_stack import contract
from cpu_train_stack.cli import printable

# The error numbers of a full disk: without space, or without space for this user.
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
_LONGEST_NAME = 200
_LONGEST_MESSAGE = 300


def one_line(error: BaseException) -> str:
    """The message of an error in one line; its type if it has no message."""
    return printable.one_line(str(error)) or type(error).__name__


def short_line(error: BaseException) -> str:
    """The beginning of a library's message, which may be long, in one line."""
    return one_line(error)[:_LONGEST_MESSAGE]


def line_of(error: BaseException) -> str:
    """The error's message, with the newlines of names and values in it written out."""
    return str(error).replace("\n", "\\n")


class UsageError(Exception):
    """One line: what was found, what was expected, and what to do. The process exits with `exit_code`."""

    exit_code = contract.USAGE_EXIT_CODE


def error_of_name(error: OSError, *more: int) -> UsageError | None:
    """The error to report for a name that no file can have, or for one of the error numbers `more`; else None."""
    if error.errno not in (errno.ENAMETOOLONG, errno.ELOOP, *more) or error.filename is None:
        return None
    name = ascii(os.fsdecode(error.filename) if isinstance(error.filename, bytes) else str(error.filename))
    shown = name if len(name) < _LONGEST_NAME else f"{name[:_LONGEST_NAME]}...'"
    return UsageError(f"{shown}: {error.strerror}: check the path and its mode")


def path_hint(path: str) -> str:
    """What to do about a path that does not exist. The usual mistake is a path of the host."""
    inside = Path(contract.DATA, Path(path).name)
    try:
        return f"did you mean '{inside}'?" if inside.exists() else "check the path and the mount"
    except (OSError, ValueError):
        return "check the path and the mount"


class MeetingError(UsageError):
    """The nodes or the ranks could not connect. Unlike for other usage errors, a restart may help."""

    exit_code = 1


def mistakes(checks: Iterable[Callable[[], object]]) -> list[str]:
    """The messages of the checks that raise UsageError, each once."""
    found: dict[str, None] = {}
    for check in checks:
        try:
            check()
        except UsageError as error:
            found[str(error)] = None
    return [*found]


def check_all(checks: Iterable[Callable[[], object]]) -> None:
    """Raises UsageError, one line with all mistakes."""
    if found := mistakes(checks):
        raise UsageError("; ".join(found).replace("\n", "\\n"))
