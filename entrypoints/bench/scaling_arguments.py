"""The command line of `bench scaling`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Callable, TypeVar

from entrypoints.bench.output import check_output
from entrypoints.bench.scaling import Scaling
from entrypoints.cli.options import Parser, positive_integer, positive_seconds
from entrypoints.group.backends import check_backend

# Of the Ice Lake guide's job on two nodes, by tooling/scaling: 0.16 s for 433 MB at 25 Gbit/s, 1.37 s a step.
RATIO = 0.12
SECONDS = 60.0
_Item = TypeVar("_Item")


def prepare(argv: Sequence[str], backends: Sequence[str], timeout: float) -> Scaling:
    """Parse what follows `bench scaling`. `backends`: those of the image. Raises UsageError."""
    parser = Parser(
        "bench scaling",
        "Measure, as one rank: a training step of a small encoder in fp32 on 1, 2, 4, ... of the job's nodes in\n"
        "turn, with each backend and without any exchange. Prints one JSON document.",
        "bench scaling [options]",
    )
    add = parser.add_argument
    add(
        "--nodes",
        type=_list(positive_integer),
        default=[],
        metavar="A,B",
        help="numbers of nodes (default: 1, 2, 4, ... of the job's)",
    )
    add("--backends", type=_list(check_backend), metavar="A,B", help="default: what the image has")
    add("--ratio", type=positive_seconds, default=RATIO, metavar="R",
        help="choose the batch so that all_reduce takes R of computing (default: %(default)g)")  # fmt: skip
    add("--length", type=positive_integer, default=32, metavar="N", help="tokens of a sample (default: 32)")
    add("--seconds", type=positive_seconds, default=SECONDS, metavar="S",
        help="to measure, about (default: %(default)g)")  # fmt: skip
    add("--timeout", type=positive_seconds, default=timeout, metavar="SECONDS",
        help="for each collective (default: %(default)g)")  # fmt: skip
    add("--output", type=Path, metavar="FILE", help="write the document to this file, print nothing")
    options = parser.parse_args(argv)
    if options.output is not None:
        check_output(options.output)
    return Scaling(
        nodes=tuple(sorted(set(options.nodes))),
        backends=tuple(options.backends or backends),
        ratio=options.ratio,
        length=options.length,
        seconds=options.seconds,
        timeout_seconds=options.timeout,
        output=options.output,
    )


def _list(item: Callable[[str], _Item]) -> Callable[[str], list[_Item]]:
    """An argparse type: `item`s with commas between them."""
    return lambda text: [item(part) for part in text.split(",")]
