"""The one kind of error that a user can mend: bad usage, bad configuration, bad input."""

from __future__ import annotations

from invoke.exceptions import Exit

USAGE_EXIT_CODE = 2


class UsageError(Exit):
    """Says in one line what was found, what was expected and what to do. ./inv prints it and exits with 2."""

    def __init__(self, message: str) -> None:
        super().__init__(message=message, code=USAGE_EXIT_CODE)

    def __str__(self) -> str:
        return str(self.message)


class EngineLostError(UsageError):
    """The engine does not answer. Whoever watches a job catches it: for a job that runs it is no bad usage."""
