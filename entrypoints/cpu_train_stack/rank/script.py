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
from dataclasses import dataclass, replace
from pathlib import Path

from cpu_train_stack import catalogue, contract
from cpu_train_stack.adapt.adaptation import Situation
from cpu_train_stack.cli.errors import UsageError, path_hint
from cpu_train_stack.cli.options import (
    DEFAULT_TIMEOUT_SECONDS,
    default_backend,
    duration,
    option,
    parse_options,
)
from cpu_train_stack.compat.table import PROCESS_GROUP, SINGLE_RANK
from cpu_train_stack.group.banner import Announce
from cpu_train_stack.placement.detect import DistributedEnvironment


@dataclass(frozen=True)
class Script:
    """`run`'s command line. `words`: a file, or a module's name if `is_module`, and its own arguments.

    One field for both: argparse would take a `--` behind the script for its own.
    """

    backend: str = option("--backend", "backend of the process group (default: %(default)s)", default_backend())
    timeout_seconds: float = duration("--timeout", "time limit of each collective", DEFAULT_TIMEOUT_SECONDS)
    quiet: bool = option("--quiet", "do not print the ranks and their cores at the start", False)
    explain: bool = option("--explain", "list the adaptations that apply to the script; do not run it", False)
    no_adapt: tuple[str, ...] = option(
        "--no-adapt", f"turn off an adaptation, or all; may be repeated (variable: {contract.NO_ADAPT})", (),
        action="append", metavar="NAME",
    )  # fmt: skip
    adapt: tuple[str, ...] = option(
        "--adapt", "turn on an adaptation that is off by default, see --explain; may be repeated", (),
        action="append", metavar="NAME",
    )  # fmt: skip
    is_module: bool = option("-m", "run a module instead of a file", False)
    words: tuple[str, ...] = option(
        "", "the script or the module, and its own arguments", nargs=argparse.REMAINDER,
        metavar="SCRIPT.py|MODULE ARGS",
    )  # fmt: skip

    @property
    def target(self) -> str:
        """The file or the module. Empty only with `explain`."""
        return self.words[0] if self.words else ""

    @property
    def arguments(self) -> tuple[str, ...]:
        return self.words[1:]

    def is_plain(self, environment: DistributedEnvironment) -> bool:
        """Whether the script sees a plain process, without a process group until the script needs one."""
        off = catalogue.switched_off(self.no_adapt, self.adapt)
        return environment.world_size == 1 and not off & {PROCESS_GROUP, SINGLE_RANK}

    def run(self, environment: DistributedEnvironment, announce: Announce, /) -> int:
        """Run the script in this process, under the existing process group. Its exceptions pass through."""
        announce(self.quiet)
        situation = Situation(
            self.arguments, catalogue.versions(), self.backend, environment.rank, environment.world_size
        )
        catalogue.install(situation, catalogue.switched_off(self.no_adapt, self.adapt))
        sys.argv = [*self.words]
        if self.is_module:  # runpy replaces the first argument by the module's file
            sys.path.insert(0, str(Path.cwd()))
            _run_module(self.target)
        else:
            sys.path.insert(0, str(Path(self.target).resolve().parent))
            runpy.run_path(self.target, run_name="__main__")
        return 0


def parse(argv: Sequence[str]) -> Script:
    """Parse `run`'s own options, which precede the script. Raises UsageError."""
    usage = "[options] SCRIPT.py ARGS... | run [options] -m MODULE ARGS..."
    script = parse_options(Script, argv, "run", "Run a Python script or module as one rank.", usage)
    if script.words[:1] == ("--",):
        script = replace(script, words=script.words[1:])
    if not script.words and not script.explain:
        raise UsageError("run: no script, expected run [options] SCRIPT.py ARGS... (or -m MODULE ARGS...)")
    return script


def prepare(argv: Sequence[str]) -> Script:
    """Parse the command line, and check that the script and the adaptations exist. Raises UsageError."""
    script = parse(argv)
    catalogue.switched_off(script.no_adapt, script.adapt)
    if not script.is_module and not os.path.isfile(script.target):  # noqa: PTH113 - Path raises for a long name
        raise UsageError(
            f"run: {script.target!r} is not a file, expected a Python script (or -m MODULE): "
            f"{path_hint(script.target)}"
        )
    if not script.is_module:
        _check_text(Path(script.target))
    return script


def _check_text(path: Path) -> None:
    """Raise UsageError for a script that Python cannot read as text, such as one that the disk has damaged."""
    try:
        text = path.read_bytes() if path.suffix == ".py" else b""
    except OSError as error:
        raise UsageError(
            f"run: {str(path)!r} cannot be read ({error.strerror}): change the file's owner or mode"
        ) from error
    if (place := text.find(b"\0")) >= 0:
        line = text.count(b"\n", 0, place) + 1
        raise UsageError(
            f"run: {str(path)!r} has a zero byte in line {line}, expected a Python script: copy it again"
        )


def explanation(argv: Sequence[str]) -> str | None:
    """The list of adaptations for `run --explain`. None if --explain is the script's. Raises UsageError."""
    script = parse(argv)
    if not script.explain:
        return None
    situation = Situation(script.arguments, catalogue.versions(), script.backend)
    return catalogue.explain(situation, catalogue.switched_off(script.no_adapt, script.adapt))


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
