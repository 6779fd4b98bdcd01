"""The command lines of `bench collectives` and `bench scaling`. Torch-free, until the measurement runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cpu_train_stack.bench import cases
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.options import (
    duration,
    integer,
    number,
    one_of,
    option,
    parse_options,
    positive_integer,
    several,
)
from cpu_train_stack.group.backends import check_backend, installed_backends
from cpu_train_stack.group.banner import Announce
from cpu_train_stack.placement.detect import DistributedEnvironment

# A longer collective has failed. The default of training, half an hour, is for stragglers.
TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True)
class Common:
    """The options of both measurements."""

    timeout_seconds: float = duration("--timeout", "time limit of each collective", TIMEOUT_SECONDS)
    output: Path | None = option(
        "--output", "write the document to this file, and print nothing", type=Path, metavar="FILE"
    )


@dataclass(frozen=True)
class Collectives(Common):
    """The command line of `bench collectives`."""

    what: str = option(
        "", "to measure training steps instead, see bench scaling --help",
        choices=("collectives", "scaling"), metavar="collectives",
    )  # fmt: skip
    only: str | None = option(
        "--backend", "measure only this backend (default: all of this image)", metavar="NAME"
    )
    sizes: tuple[int, ...] = option(
        "--sizes", "sizes of the complete tensor, such as 4K,25M (default: 4K to 100M)", (),
        type=several(cases.parse_size), metavar="A,B",
    )  # fmt: skip
    dtypes: tuple[str, ...] = option(
        "--dtypes", f"any of {', '.join(cases.DTYPES)}", (),
        type=several(one_of(tuple(cases.DTYPES))), metavar="A,B",
    )  # fmt: skip
    collectives: tuple[str, ...] = option(
        "--collectives", f"any of {', '.join(cases.COLLECTIVES)}", (),
        type=several(one_of(cases.COLLECTIVES)), metavar="A,B",
    )  # fmt: skip
    seconds: float = duration("--seconds", "approximate time for each size", 2.0)
    as_json: bool = option("--json", "print one JSON document instead of a table", False)

    @property
    def backends(self) -> list[str]:
        """The backends to measure. Raises UsageError for a backend that this image does not have."""
        return [check_backend(self.only)] if self.only else installed_backends()

    @property
    def backend(self) -> str:
        """The backend of the default group, which the worker creates."""
        return self.backends[0]

    def run(self, environment: DistributedEnvironment, _announce: Announce, /) -> int:
        """Measure. The document has the facts that other commands announce."""
        from cpu_train_stack.bench import collectives

        return collectives.run(self, environment)


@dataclass(frozen=True)
class Scaling(Common):
    """The command line of `bench scaling`. `nodes`: empty for powers of two."""

    nodes: tuple[int, ...] = option(
        "--nodes", "numbers of nodes (default: 1, 2, 4, ... up to the job's)", (),
        type=several(positive_integer), metavar="A,B",
    )  # fmt: skip
    backends: tuple[str, ...] = option(
        "--backends", "backends to measure (default: all of this image)", tuple(installed_backends()),
        type=several(check_backend), metavar="A,B",
    )  # fmt: skip
    ratio: float = option(
        "--ratio", "sets the batch: all_reduce takes R times the computing time (default: %(default)g)",
        cases.GUIDES_RATIO, type=number(0.001, 1000), metavar="R",
    )  # fmt: skip
    length: int = option("--length", "tokens per sample (default: 32)", 32, type=integer(1, 65536), metavar="N")
    seconds: float = duration("--seconds", "approximate time to measure", 60.0)

    @property
    def backend(self) -> str:
        """The backend of the default group, which measures nothing: ranks that wait in gloo sleep."""
        return "gloo"

    def run(self, environment: DistributedEnvironment, _announce: Announce, /) -> int:
        """Measure. The document has the facts that other commands announce."""
        from cpu_train_stack.bench import scaling

        return scaling.run(self, environment)


def prepare(argv: Sequence[str]) -> Collectives | Scaling:
    """Parse the command line, and check that the output can be written. Raises UsageError."""
    options = parse(argv)
    if options.output is not None:
        folder = options.output.absolute().parent
        if options.output.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
            raise UsageError(
                f"bench: --output {options.output}, expected a file in a folder that exists and is writable"
            )
    return options


def parse(argv: Sequence[str]) -> Collectives | Scaling:
    """Parse `bench`'s arguments. Raises UsageError."""
    if argv and argv[0] == "scaling":
        return parse_options(
            Scaling, argv[1:], "bench scaling",
            "Measure a training step of a small encoder in fp32 on 1, 2, 4, ... of the job's nodes in turn, as\n"
            "one rank, with each backend and without communication. Prints one JSON document.",
            "[options]",
        )  # fmt: skip
    return parse_options(
        Collectives, argv, "bench",
        "Measure the collectives of each backend of this image, in turn in the same processes, as one rank.\n"
        "Compare them with the hardware's limits: memory copy, and TCP between nodes.",
        "collectives [options]",
    )  # fmt: skip
