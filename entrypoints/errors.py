"""The one kind of error that a user can mend: bad usage, bad configuration, bad input."""

from __future__ import annotations

USAGE_EXIT_CODE = 2


class UsageError(Exception):
    """Says in one line what was found, what was expected and what to do. The process exits with code 2."""


class MeetingError(UsageError):
    """The ranks have not met. Unlike other bad usage, a restart may mend it: a node may be late or lost."""
