"""Errors that the user can fix: bad usage, bad configuration, bad input."""

from collections.abc import Callable, Iterable

from invoke.exceptions import Exit

from cpu_train_stack import contract


class UsageError(Exit):
    """A mistake that the user can fix. ./inv prints the message and exits with 2.

    The message has one line for each mistake: what was found, what was expected, and what to do.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message=message, code=contract.USAGE_EXIT_CODE)

    def __str__(self) -> str:
        return str(self.message)


class EngineLostError(UsageError):
    """The engine does not answer. Code that watches a running job catches this error."""


def check_at_least(flag: str, value: int, least: int) -> None:
    """Raises UsageError for a smaller value of an option."""
    if value < least:
        raise UsageError(f"{flag} is {value}, expected {least} or more")


def mistakes(checks: Iterable[Callable[[], object]]) -> list[str]:
    """The messages of the checks that raise UsageError."""
    found = []
    for check in checks:
        try:
            check()
        except UsageError as error:
            found.append(str(error))
    return found


def check_all(checks: Iterable[Callable[[], object]]) -> None:
    """Raises UsageError, one line with all mistakes."""
    if found := mistakes(checks):
        raise UsageError("; ".join(found))
