"""`run SCRIPT.py ARGS...` and `run -m MODULE ARGS...`: any torch script, unmodified, as one rank.

It runs as `__main__` with its own sys.argv and its folder first on sys.path; its exception and its exit code
are its own. The group is made already; what upstream broke for it is mended by the adaptations.
"""

from __future__ import annotations

import runpy
import sys
from dataclasses import dataclass
from pathlib import Path

from entrypoints.adapt import catalogue
from entrypoints.adapt.adaptation import Situation
from entrypoints.cli.errors import UsageError
from entrypoints.group.backends import check_backend
from entrypoints.group.banner import Announce
from entrypoints.placement.detect import DistributedEnvironment
from entrypoints.rank import run_options


@dataclass(frozen=True)
class Script:
    """What `run` was asked to do. `target`: a file, or a module's name where `is_module`."""

    target: str
    is_module: bool
    arguments: tuple[str, ...]
    backend: str
    timeout_seconds: float
    quiet: bool
    no_adapt: frozenset[str]

    def run(self, environment: DistributedEnvironment, announce: Announce, /) -> int:
        """Run it in this process, under the group that exists. Its own exceptions pass through."""
        announce(self.quiet)
        situation = Situation(
            self.arguments, catalogue.versions(), self.backend, environment.rank, environment.world_size
        )
        catalogue.install(situation, self.no_adapt)
        sys.argv = [self.target, *self.arguments]
        if self.is_module:  # runpy replaces the first argument by the module's file
            sys.path.insert(0, str(Path.cwd()))
            self._run_module()
        else:
            sys.path.insert(0, str(Path(self.target).resolve().parent))
            runpy.run_path(self.target, run_name="__main__")
        return 0

    def _run_module(self) -> None:
        try:
            runpy.run_module(self.target, run_name="__main__", alter_sys=True)
        except ImportError as error:
            traceback = error.__traceback__
            while traceback is not None and traceback.tb_next is not None:
                traceback = traceback.tb_next
            # runpy's own: the module is not there. What the module itself fails to import is its error.
            if traceback is None or "runpy" not in traceback.tb_frame.f_code.co_filename:
                raise
            raise UsageError(
                f"run: -m {self.target}: {error}; expected a module in {Path.cwd()} or an installed one"
            ) from error


def prepare(argv: list[str]) -> Script:
    """Parse `run`'s own options, which stand before the script. Raises UsageError."""
    options = run_options.parse(argv)
    target = options.target or ""
    if not options.is_module and not Path(target).is_file():
        raise UsageError(f"run: {target!r} is not a file, expected a Python script (or -m MODULE)")
    return Script(
        target,
        options.is_module,
        options.arguments,
        check_backend(options.backend),
        options.timeout_seconds,
        options.quiet,
        options.no_adapt,
    )
