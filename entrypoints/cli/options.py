"""Command-line parsing with errors of one line (UsageError), and defaults that several commands share."""

from __future__ import annotations

import argparse
from typing import NoReturn

from entrypoints.cli import packages
from entrypoints.cli.errors import UsageError
from entrypoints.cli.numbers import whole_number

DEFAULT_TIMEOUT_SECONDS = 1800.0  # for each collective


def default_backend() -> str:
    """The backend of the process group if a command names none: ccl if the image has it."""
    return "ccl" if packages.installed(packages.CCL) else "gloo"


class Parser(argparse.ArgumentParser):
    """An ArgumentParser without abbreviated options. Raises UsageError instead of printing its usage."""

    def __init__(self, prog: str, description: str, usage: str | None = None) -> None:
        super().__init__(
            prog=prog,
            usage=usage,
            description=description,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}; see {self.prog} --help")


def positive_seconds(text: str) -> float:
    """A duration in seconds, more than 0."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e7:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, expected more than 0")
    return seconds


def positive_integer(text: str) -> int:
    """A count, 1 or more."""
    value = whole_number(text)
    if not value:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer, expected 1 or more")
    return value


def port_number(text: str) -> int:
    """A TCP port that an unprivileged process can open."""
    value = whole_number(text)
    if value is None or not 1024 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port, expected 1024 to 65535")
    return value
