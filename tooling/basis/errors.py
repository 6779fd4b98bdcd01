"""Errors that the user can fix: bad usage, bad configuration, bad input."""

from __future__ import annotations

from invoke.exceptions import Exit

from entrypoints import contract


class UsageError(Exit):
    """The message has what was found, what was expected and what to do. ./inv prints it and exits with 2.

    One line for each mistake.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message=message, code=contract.USAGE_EXIT_CODE)

    def __str__(self) -> str:
        return str(self.message)


class EngineLostError(UsageError):
    """The engine does not answer. Code that watches a running job catches this error, which is no bad usage."""
