"""`run SCRIPT.py ARGS...` and `run -m MODULE ARGS...`: any torch script, unmodified, as one rank. Torch-free.

The script runs as `__main__` with its own sys.argv and its folder first on sys.path. Its exceptions and its
exit code pass through. Its process group exists before it starts, and adaptations undo what newer libraries
broke for it.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from entrypoints import contract
from entrypoints.adapt import catalogue
from entrypoints.adapt.adaptation import Situation
from entrypoints.cli.errors import UsageError
from entrypoints.cli.options import DEFAULT_TIMEOUT_SECONDS, Parser, default_backend, positive_seconds
from entrypoints.group.banner import Announce
from entrypoints.placement.detect import DistributedEnvironment


@dataclass(frozen=True)
class Script:
    """`run`'s command line. `target`: a file, or a module's name if `is_module`; None only with `explain`."""

    target: str | None
    is_module: bool
    arguments: tuple[str, ...]
    backend: str
    timeout_seconds: float
    quiet: bool
    explain: bool
    no_adapt: frozenset[str]

    def run(self, environment: DistributedEnvironment, announce: Announce, /) -> int:
        """Run the script in this process, under the existing process group. Its exceptions pass through."""
        announce(self.quiet)
        situation = Situation(
            self.arguments, catalogue.versions(), self.backend, environment.rank, environment.world_size
        )
        catalogue.install(situation, self.no_adapt)
        target = self.target or ""
        sys.argv = [target, *self.arguments]
        if self.is_module:  # runpy replaces the first argument by the module's file
            sys.path.insert(0, str(Path.cwd()))
            _run_module(target)
        else:
            sys.path.insert(0, str(Path(target).resolve().parent))
            runpy.run_path(target, run_name="__main__")
        return 0


def parse(argv: Sequence[str]) -> Script:
    """Parse `run`'s own options, which precede the script. Raises UsageError."""
    parser = Parser(
        "run",
        "Run a Python script or module as one rank.",
        "run [options] SCRIPT.py ARGS... | run [options] -m MODULE ARGS...",
    )
    add = parser.add_argument
    add("--backend", default=default_backend(), help="backend of the process group (default: %(default)s)")
    add("--timeout", type=positive_seconds, default=DEFAULT_TIMEOUT_SECONDS, metavar="SECONDS",
        help="time limit of each collective (default: %(default)g)")  # fmt: skip
    add("--quiet", action="store_true", help="do not print the ranks and their cores at the start")
    add("--explain", action="store_true", help="list the adaptations that apply to the script; do not run it")
    add("--no-adapt", action="append", default=[], metavar="NAME",
        help=f"turn off an adaptation, or all; may be repeated (variable: {contract.NO_ADAPT})")  # fmt: skip
    add("-m", dest="is_module", action="store_true", help="run a module instead of a file")
    add("target", nargs="?", metavar="SCRIPT.py|MODULE")
    add("arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="the script's own arguments")
    options = parser.parse_args(argv)
    if options.target is None and not options.explain:
        raise UsageError("run: no script, expected run [options] SCRIPT.py ARGS... (or -m MODULE ARGS...)")
    return Script(
        target=options.target,
        is_module=options.is_module,
        arguments=tuple(options.arguments),
        backend=options.backend,
        timeout_seconds=options.timeout,
        quiet=options.quiet,
        explain=options.explain,
        no_adapt=catalogue.switched_off(options.no_adapt, os.environ),
    )


def prepare(argv: Sequence[str]) -> Script:
    """Parse the command line and check that the script exists. Raises UsageError."""
    script = parse(argv)
    if not script.is_module and not Path(script.target or "").is_file():
        raise UsageError(f"run: {script.target or ''!r} is not a file, expected a Python script (or -m MODULE)")
    return script


def explanation(argv: Sequence[str]) -> str | None:
    """The list of adaptations for `run --explain`. None if --explain is the script's. Raises UsageError."""
    script = parse(argv)
    if not script.explain:
        return None
    return catalogue.explain(Situation(script.arguments, catalogue.versions(), script.backend), script.no_adapt)


def _run_module(name: str) -> None:
    try:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    except ImportError as error:
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_next is not None:
            traceback = traceback.tb_next
        # runpy's own error: the module does not exist. An import that the module itself fails to do is its own
        # error.
        if traceback is None or "runpy" not in traceback.tb_frame.f_code.co_filename:
            raise
        raise UsageError(
            f"run: -m {name}: {error}; expected a module in {Path.cwd()} or an installed one"
        ) from error
