"""Errors that the user can fix: bad usage, configuration or input."""

from __future__ import annotations

import errno

from cpu_train_stack import contract
from cpu_train_stack.cli import printable

# The error numbers of a full disk: without space, or without space for this user.
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)


def one_line(error: BaseException) -> str:
    """The message of an error in one line; its type if it has no message."""
    return printable.one_line(str(error)) or type(error).__name__


class UsageError(Exception):
    """One line: what was found, what was expected, and what to do. The process exits with `exit_code`."""

    exit_code = contract.USAGE_EXIT_CODE


class MeetingError(UsageError):
    """The nodes or the ranks could not connect. Unlike for other usage errors, a restart may help."""

    exit_code = 1
