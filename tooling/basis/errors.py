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


# The most containers of a cluster on one machine, and the most ranks in a container.
MOST_CONTAINERS, MOST_RANKS = 256, 1024
# Of a cluster of machines.
MOST_NODES, MOST_CPUS = 100_000, 65_536
# Of numbers without a limit of their own.
MOST = 1_000_000_000


def check_at_least(flag: str, value: float, least: int, most: int = MOST) -> None:
    """Raises UsageError for a value of an option that is smaller, greater than `most`, or not a number."""
    if not least <= value <= most:
        expected = f"{least} or more" if value < least else f"{least} to {most}"
        raise UsageError(f"{flag} is {value}, expected {expected}")


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
