"""Command lines: options that are declared once, as fields of a dataclass, and errors of one line (UsageError).

    @dataclass(frozen=True)
    class Watch:
        node: str = option("", "the node to watch", metavar="NODE")
        every: float = duration("--every", "time between two reports", 2.0)

    watch = parse_options(Watch, argv, "watch", "Watch a node.")

An option's `type` converts and checks its text. Type hints cannot: Python 3.9 does not evaluate `int | None`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields
from typing import Any, NoReturn, TypeVar

from cpu_train_stack.cli import packages
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.numbers import MOST_RANKS, whole_number

DEFAULT_TIMEOUT_SECONDS = 1800.0  # for each collective
_LARGEST = 1e7  # of numbers that are not integers
NO_DASH = "found '-', which does not mean standard input or output here: name a file (./- if its name is -)"
_T = TypeVar("_T")


def default_backend() -> str:
    """The backend of the process group if a command names none: ccl if the image has it."""
    return "ccl" if packages.installed(packages.CCL) else "gloo"


def option(
    flag: str, help_text: str, default: Any = None, *, variables: Sequence[str] = (), **settings: Any
) -> Any:
    """A field that is an option, or an argument without a flag. With the default False, it is a switch.

    `variables`: environment variables with the default, best first. `settings`: of argparse's add_argument.
    """
    if default is False:
        settings["action"] = "store_true"
    return field(default=default, metadata={"flag": flag, "variables": variables, "help": help_text, **settings})


def duration(flag: str, help_text: str, default: float) -> Any:
    """A field that is an option with a duration in seconds."""
    return option(flag, f"{help_text} (default: %(default)g)", default, type=positive_seconds, metavar="SECONDS")


def remaining_command() -> Any:
    """A field that is the command behind the options."""
    return option("", "train ..., run SCRIPT.py ... or bench ...", nargs=argparse.REMAINDER, metavar="COMMAND")


def parse_options(
    options: Callable[..., _T],
    argv: Sequence[str],
    program: str,
    description: str,
    usage: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> _T:
    """The dataclass `options` with the values of `argv`. Raises UsageError."""
    declared: Any = options
    parser = _OptionParser(
        prog=program,
        usage=usage and f"{program} {usage}",
        description=description,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for item in fields(declared):
        settings = dict(item.metadata)
        flag, variables = settings.pop("flag"), settings.pop("variables")
        if flag:
            settings["dest"] = item.name
        default = next(filter(None, map(environ.get, variables)), item.default)
        settings["default"] = list(default) if isinstance(default, tuple) else default
        parser.add_argument(flag or item.name, **settings)
    # argparse expects all positional arguments in one place, unless it is asked to accept options among them.
    takes_command = any(item.metadata.get("nargs") == argparse.REMAINDER for item in fields(declared))
    values = vars((parser.parse_args if takes_command else parser.parse_intermixed_args)(argv))
    return options(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


class Parser(argparse.ArgumentParser):
    """A parser that refuses the values - and --. Python before 3.13 leaves out --, and returns an empty list."""

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        if action.option_strings and arg_strings == ["--"]:
            raise argparse.ArgumentError(action, "found '--', expected a value")
        if action.option_strings and arg_strings == ["-"]:
            raise argparse.ArgumentError(action, NO_DASH)
        return super()._get_values(action, arg_strings)


class _OptionParser(Parser):
    """Also refuses empty values, as of an unset variable in --html "$FILE"."""

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        if "" in arg_strings and action.nargs != argparse.REMAINDER:
            raise argparse.ArgumentError(action, "found an empty text, expected a value: check the variable")
        return super()._get_values(action, arg_strings)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}; see {self.prog} --help")


def integer(low: int, high: int | None = None, what: str = "an integer") -> Callable[[str], int]:
    """An option's type: an integer from `low` to `high`."""
    expected = f"{what} from {low} to {high}" if high is not None else f"{what} of {low} or more"

    def convert(text: str) -> int:
        value = whole_number(text)
        if value is None or value < low or (high is not None and value > high):
            raise argparse.ArgumentTypeError(f"found {text!r}, expected {expected}")
        return value

    return convert


positive_integer = integer(1)
# Far more processes than a node has CPUs would only exhaust its memory.
ranks_of_a_node = integer(1, MOST_RANKS, "a number of ranks")
# The ports that an unprivileged process can open.
port_number = integer(1024, 65535, "a port")


def number(low: float, high: float, what: str = "a number") -> Callable[[str], float]:
    """An option's type: a number from `low` to `high`, but not 0."""

    def convert(text: str) -> float:
        try:
            value = float(text) if text.isascii() else 0.0
        except ValueError:
            value = 0.0
        if not (low <= value <= high and value):  # NaN is in no range
            expected = f"{what} {f'from {low:g} to' if low else 'above 0, at most'} {high:.0f}"
            raise argparse.ArgumentTypeError(f"found {text!r}, expected {expected}")
        return value

    return convert


positive_seconds = number(0, _LARGEST, "a number of seconds")


def one_of(choices: Sequence[str]) -> Callable[[str], str]:
    """An option's type: one of `choices`. Unlike argparse's own choices, also checked for a variable's value."""

    def convert(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(f"found {text!r}, expected {' or '.join(choices)}")
        return text

    return convert


def several(item: Callable[[str], _T]) -> Callable[[str], list[_T]]:
    """An option's type: values of the type `item`, separated by commas."""
    return lambda text: [item(part) for part in text.split(",")]
