"""The command line of `run`, and its --explain. Torch-free."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass

from entrypoints import contract
from entrypoints.adapt import catalogue
from entrypoints.adapt.adaptation import Situation
from entrypoints.cli.errors import UsageError
from entrypoints.cli.options import DEFAULT_TIMEOUT_SECONDS, Parser, default_backend, positive_seconds


@dataclass(frozen=True)
class RunOptions:
    """`run`'s own options, which stand before the script. `target`: None only with `explain`."""

    target: str | None
    is_module: bool
    arguments: tuple[str, ...]
    backend: str
    timeout_seconds: float
    quiet: bool
    explain: bool
    no_adapt: frozenset[str]


def parse(argv: Sequence[str]) -> RunOptions:
    """Raises UsageError."""
    parser = Parser(
        "run",
        "Run a Python script or module as one rank.",
        "run [options] SCRIPT.py ARGS... | run [options] -m MODULE ARGS...",
    )
    add = parser.add_argument
    add("--backend", default=default_backend(), help="of the process group (default: %(default)s)")
    add(
        "--timeout",
        type=positive_seconds,
        default=DEFAULT_TIMEOUT_SECONDS,
        metavar="SECONDS",
        help="for each collective (default: %(default)g)",
    )
    add("--quiet", action="store_true", help="no lines about ranks and cores at the start")
    add("--explain", action="store_true", help="list what would be adapted for the script, and run nothing")
    add(
        "--no-adapt",
        action="append",
        default=[],
        metavar="NAME",
        help=f"leave an adaptation out, or all of them; may be repeated (variable: {contract.NO_ADAPT})",
    )
    add("-m", dest="is_module", action="store_true", help="run a module instead of a file")
    add("target", nargs="?", metavar="SCRIPT.py|MODULE")
    add("arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="passed on as they are")
    options = parser.parse_args(argv)
    if options.target is None and not options.explain:
        raise UsageError("run: no script, expected run [options] SCRIPT.py ARGS... (or -m MODULE ARGS...)")
    return RunOptions(
        target=options.target,
        is_module=options.is_module,
        arguments=tuple(options.arguments),
        backend=options.backend,
        timeout_seconds=options.timeout,
        quiet=options.quiet,
        explain=options.explain,
        no_adapt=catalogue.switched_off(options.no_adapt, os.environ),
    )


def explained(argv: Sequence[str]) -> str | None:
    """The list of adaptations where `run --explain` was asked for, else None. Raises UsageError."""
    if "--explain" not in argv:
        return None
    options = parse(argv)
    if not options.explain:  # it was the script's
        return None
    return catalogue.explain(Situation(options.arguments, catalogue.versions(), options.backend), options.no_adapt)
