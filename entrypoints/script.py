"""`run SCRIPT.py ARGS...` and `run -m MODULE ARGS...`: any torch script, unmodified, as one rank.

It runs as `__main__` with its own sys.argv and its folder first on sys.path; its exception and its exit code
are its own. Its init_process_group call finds the group made already.
"""

from __future__ import annotations

import argparse
import functools
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from entrypoints.banner import Announce
from entrypoints.distributed import DEFAULT_BACKEND, DEFAULT_TIMEOUT_SECONDS, check_backend
from entrypoints.environment import DistributedEnvironment
from entrypoints.errors import UsageError
from entrypoints.options import Parser, positive_seconds


@dataclass(frozen=True)
class Script:
    """What `run` was asked to do. `target`: a file, or a module's name where `is_module`."""

    target: str
    is_module: bool
    arguments: tuple[str, ...]
    backend: str
    timeout_seconds: float
    quiet: bool = False

    def run(self, environment: DistributedEnvironment, announce: Announce, /) -> int:
        """Run it in this process, under the group that exists. Its own exceptions pass through."""
        announce(self.quiet)
        _adopt_group(environment)
        if self.is_module:
            sys.argv = [self.target, *self.arguments]  # runpy replaces the first by the module's file
            sys.path.insert(0, str(Path.cwd()))
            runpy.run_module(self.target, run_name="__main__", alter_sys=True)
        else:
            sys.argv = [self.target, *self.arguments]
            sys.path.insert(0, str(Path(self.target).resolve().parent))
            runpy.run_path(self.target, run_name="__main__")
        return 0


def prepare(argv: list[str]) -> Script:
    """Parse `run`'s own options, which stand before the script. Raises UsageError."""
    parser = Parser(
        "run",
        "Run a Python script or module as one rank.",
        "run [options] SCRIPT.py ARGS... | run [options] -m MODULE ARGS...",
    )
    parser.add_argument("--backend", default=DEFAULT_BACKEND, help="of the process group (default: %(default)s)")
    parser.add_argument(
        "--timeout",
        type=positive_seconds,
        default=DEFAULT_TIMEOUT_SECONDS,
        metavar="SECONDS",
        help="for each collective (default: %(default)g)",
    )
    parser.add_argument("--quiet", action="store_true", help="no lines about ranks and cores at the start")
    parser.add_argument("-m", dest="is_module", action="store_true", help="run a module instead of a file")
    parser.add_argument("target", metavar="SCRIPT.py|MODULE")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="passed on as they are")
    options = parser.parse_args(argv)
    if not options.is_module and not Path(options.target).is_file():
        raise UsageError(f"run: {options.target!r} is not a file, expected a Python script (or -m MODULE)")
    return Script(
        options.target,
        options.is_module,
        tuple(options.arguments),
        check_backend(options.backend),
        options.timeout,
        options.quiet,
    )


def _adopt_group(environment: DistributedEnvironment) -> None:
    """Let the script's own init_process_group call return the group that exists, once.

    torch refuses to make the default group twice, and a script that runs under torchrun makes it itself.
    """
    import torch.distributed as dist

    original = dist.init_process_group
    adopted = False

    @functools.wraps(original)
    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        nonlocal adopted
        if adopted or not dist.is_initialized():
            original(backend, *args, **kwargs)
            return
        adopted = True
        for name, ours in (("rank", environment.rank), ("world_size", environment.world_size)):
            if kwargs.get(name, -1) not in (-1, None, ours):
                raise ValueError(f"init_process_group({name}={kwargs[name]}), but this process has {name} {ours}")
        running = dist.get_backend()
        if backend is not None and str(backend).lower() != running and environment.rank == 0:
            print(
                f"warning: the script asked for backend {backend!s}, the group that runs is {running}",
                file=sys.stderr,
            )

    dist.init_process_group = init_process_group
    dist.distributed_c10d.init_process_group = init_process_group


def own_traceback(traceback: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that starts in the script: without this file's and runpy's frames."""
    position = traceback
    while position is not None:
        name = position.tb_frame.f_code.co_filename
        if name != __file__ and "runpy" not in name and Path(name).parent != Path(__file__).parent:
            return position
        position = position.tb_next
    return traceback
