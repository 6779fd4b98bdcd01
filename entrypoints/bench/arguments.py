"""The command line of `bench`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Callable, TypeVar

from entrypoints.bench import cases, scaling_arguments
from entrypoints.bench.collectives import Collectives
from entrypoints.bench.output import check_output
from entrypoints.bench.scaling import Scaling
from entrypoints.cli import packages
from entrypoints.cli.options import Parser, positive_seconds
from entrypoints.group.backends import BACKENDS, check_backend

MEASUREMENTS = ("collectives", "scaling")
ROW_SECONDS = 2.0
# A collective that takes longer has stopped; the default of training, half an hour, is for stragglers.
TIMEOUT_SECONDS = 120.0
_Item = TypeVar("_Item")


def prepare(argv: Sequence[str]) -> Collectives | Scaling:
    """Parse `bench`'s arguments. Raises UsageError."""
    if argv and argv[0] == "scaling":
        return scaling_arguments.prepare(argv[1:], backends(), TIMEOUT_SECONDS)
    parser = Parser(
        "bench",
        "Measure, as one rank. collectives: time and bandwidth of every backend of this image, in turn in the\n"
        "same processes, with the limits of the place: memory copy, and TCP where there are several nodes.",
        "bench collectives [options]",
    )
    add = parser.add_argument
    add("what", choices=MEASUREMENTS, metavar="collectives", help="what to measure; or: bench scaling --help")
    add("--backend", metavar="NAME", help="measure this one only (default: ccl and gloo, what the image has)")
    add(
        "--sizes",
        type=_list(cases.parse_size),
        metavar="A,B",
        help="of the whole tensor: 4K,25M (default: 4K to 100M)",
    )
    add("--dtypes", type=_list(_one_of(tuple(cases.DTYPES))), metavar="A,B", help=", ".join(cases.DTYPES))
    add("--collectives", type=_list(_one_of(cases.COLLECTIVES)), metavar="A,B", help=", ".join(cases.COLLECTIVES))
    add("--seconds", type=positive_seconds, default=ROW_SECONDS, metavar="S",
        help="to measure each size, about (default: %(default)g)")  # fmt: skip
    add("--timeout", type=positive_seconds, default=TIMEOUT_SECONDS, metavar="SECONDS",
        help="for each collective (default: %(default)g)")  # fmt: skip
    add("--json", action="store_true", help="one JSON document on standard output instead of a table")
    add("--output", type=Path, metavar="FILE", help="write the document to this file, print nothing")
    options = parser.parse_args(argv)
    if options.output is not None:
        check_output(options.output)
    backend, *others = [check_backend(options.backend)] if options.backend else backends()
    return Collectives(
        cases=tuple(cases.chosen(options.collectives, options.dtypes, options.sizes)),
        backend=backend,
        others=tuple(others),
        row_seconds=options.seconds,
        timeout_seconds=options.timeout,
        as_json=options.json,
        output=options.output,
    )


def backends() -> list[str]:
    """What this image has."""
    return [name for name in BACKENDS if name != "ccl" or packages.installed(packages.CCL)]


def _list(item: Callable[[str], _Item]) -> Callable[[str], list[_Item]]:
    """An argparse type: `item`s with commas between them."""
    return lambda text: [item(part) for part in text.split(",")]


def _one_of(choices: Sequence[str]) -> Callable[[str], str]:
    """An argparse type: one of `choices`."""

    def parse(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(choices)}")
        return text

    return parse
