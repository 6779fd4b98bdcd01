"""The command lines of `bench collectives` and `bench scaling`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Callable, TypeVar

from entrypoints.bench import cases
from entrypoints.bench.collectives import Collectives
from entrypoints.bench.output import check_output
from entrypoints.bench.scaling import Scaling
from entrypoints.cli.options import Parser, positive_integer, positive_seconds
from entrypoints.group.backends import check_backend, installed_backends

ROW_SECONDS = 2.0
# A longer collective has failed. The default of training, half an hour, is for stragglers.
TIMEOUT_SECONDS = 120.0
# The Ice Lake guide's job on two nodes, by ./inv bench scaling: 0.16 s for 433 MB at 25 Gbit/s, 1.37 s a step.
RATIO = 0.12
SCALING_SECONDS = 60.0
_Item = TypeVar("_Item")


def prepare(argv: Sequence[str]) -> Collectives | Scaling:
    """Parse `bench`'s arguments. Raises UsageError."""
    return _scaling(argv[1:]) if argv and argv[0] == "scaling" else _collectives(argv)


def _collectives(argv: Sequence[str]) -> Collectives:
    parser = Parser(
        "bench",
        "Measure the collectives of each backend of this image, in turn in the same processes, as one rank.\n"
        "Compare them with the hardware's limits: memory copy, and TCP between nodes.",
        "bench collectives [options]",
    )
    add = parser.add_argument
    add("what", choices=("collectives", "scaling"), metavar="collectives",
        help="to measure training steps instead, see bench scaling --help")  # fmt: skip
    add("--backend", metavar="NAME", help="measure only this backend (default: all of this image)")
    add("--sizes", type=_list(cases.parse_size), metavar="A,B",
        help="sizes of the complete tensor, such as 4K,25M (default: 4K to 100M)")  # fmt: skip
    add(
        "--dtypes",
        type=_list(_one_of(tuple(cases.DTYPES))),
        metavar="A,B",
        help="any of " + ", ".join(cases.DTYPES),
    )
    add(
        "--collectives",
        type=_list(_one_of(cases.COLLECTIVES)),
        metavar="A,B",
        help="any of " + ", ".join(cases.COLLECTIVES),
    )
    add("--seconds", type=positive_seconds, default=ROW_SECONDS, metavar="S",
        help="approximate time for each size (default: %(default)g)")  # fmt: skip
    add("--json", action="store_true", help="print one JSON document instead of a table")
    _add_common(parser)
    options = _parse(parser, argv)
    backend, *others = [check_backend(options.backend)] if options.backend else installed_backends()
    return Collectives(
        cases=tuple(cases.chosen(options.collectives, options.dtypes, options.sizes)),
        backend=backend,
        others=tuple(others),
        row_seconds=options.seconds,
        timeout_seconds=options.timeout,
        as_json=options.json,
        output=options.output,
    )


def _scaling(argv: Sequence[str]) -> Scaling:
    parser = Parser(
        "bench scaling",
        "Measure a training step of a small encoder in fp32 on 1, 2, 4, ... of the job's nodes in turn, as one\n"
        "rank, with each backend and without communication. Prints one JSON document.",
        "bench scaling [options]",
    )
    add = parser.add_argument
    add("--nodes", type=_list(positive_integer), default=[], metavar="A,B",
        help="numbers of nodes (default: 1, 2, 4, ... up to the job's)")  # fmt: skip
    add(
        "--backends",
        type=_list(check_backend),
        metavar="A,B",
        help="backends to measure (default: all of this image)",
    )
    add("--ratio", type=positive_seconds, default=RATIO, metavar="R",
        help="sets the batch: all_reduce takes R times the computing time (default: %(default)g)")  # fmt: skip
    add("--length", type=positive_integer, default=32, metavar="N", help="tokens per sample (default: 32)")
    add("--seconds", type=positive_seconds, default=SCALING_SECONDS, metavar="S",
        help="approximate time to measure (default: %(default)g)")  # fmt: skip
    _add_common(parser)
    options = _parse(parser, argv)
    return Scaling(
        nodes=tuple(sorted(set(options.nodes))),
        backends=tuple(options.backends or installed_backends()),
        ratio=options.ratio,
        length=options.length,
        seconds=options.seconds,
        timeout_seconds=options.timeout,
        output=options.output,
    )


def _add_common(parser: Parser) -> None:
    parser.add_argument("--timeout", type=positive_seconds, default=TIMEOUT_SECONDS, metavar="SECONDS",
        help="time limit of each collective (default: %(default)g)")  # fmt: skip
    parser.add_argument("--output", type=Path, metavar="FILE",
        help="write the document to this file, and print nothing")  # fmt: skip


def _parse(parser: Parser, argv: Sequence[str]) -> argparse.Namespace:
    options = parser.parse_args(argv)
    if options.output is not None:
        check_output(options.output)
    return options


def _list(item: Callable[[str], _Item]) -> Callable[[str], list[_Item]]:
    """An argparse type: comma-separated `item`s."""
    return lambda text: [item(part) for part in text.split(",")]


def _one_of(choices: Sequence[str]) -> Callable[[str], str]:
    """An argparse type: one of `choices`."""

    def parse(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(choices)}")
        return text

    return parse
