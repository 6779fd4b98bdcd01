"""Make the first init_process_group of a script return without creating a group, and keep the group to the end.

The default process group exists already, and torch refuses to create it twice. Scripts for torchrun create it. The
rank and the world size that the script passes must be those of this process.

Newer releases of accelerate destroy the default group in Accelerator.end_training. Scripts of transformers 4 call
end_training before they wait for the other ranks and save the model.

accelerate's notebook_launcher forks processes, which inherit the group but cannot use it: gloo waits forever.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from typing import Any, Callable

from cpu_train_stack.adapt.adaptation import Situation
from cpu_train_stack.adapt.changes import around
from cpu_train_stack.cli.errors import UsageError

_PRECISION = "ACCELERATE_MIXED_PRECISION"


def use_existing(situation: Situation, module: Any) -> None:
    """`module`: torch.distributed."""
    original = module.init_process_group
    own = os.getpid()
    adopted = False

    @functools.wraps(original)
    def init_process_group(backend: str | None = None, *args: Any, **options: Any) -> None:
        from cpu_train_stack.group import create  # imports torch, as the script has

        nonlocal adopted
        # A forked child inherits this function, and may create a group of its own.
        is_pending = create.is_pending() and not module.is_initialized() and os.getpid() == own
        if not is_pending and (adopted or not module.is_initialized()):
            original(backend, *args, **options)
            return
        adopted = True
        for name, ours in (("rank", situation.rank), ("world_size", situation.world_size)):
            asked = options.get(name, -1)
            if asked not in (-1, None, ours):
                raise UsageError(
                    f"the script calls init_process_group({name}={asked}), but the launcher gave this process "
                    f"{name} {ours}: read it from the environment (RANK, WORLD_SIZE) in the script"
                )
        if is_pending:
            create.create_pending()
        running = module.get_backend()
        if backend is not None and running not in str(backend).lower().replace(",", ":").split(":"):
            situation.report(
                f"the script requests backend {backend!s}, the existing process group uses {running} (run "
                "--backend)",
            )
        if options.get("timeout") is not None:
            situation.report("the timeout of init_process_group is ignored: run --timeout sets it")

    replace_function(original, init_process_group)


def replace_function(original: Any, changed: Any) -> None:
    """Replace a function in all modules of torch that have imported it."""
    name = original.__name__
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] == "torch" and vars(module).get(name) is original:
            setattr(module, name, changed)


def keep(situation: Situation, module: Any) -> None:
    """Keep the default group if accelerate is about to destroy it. Other groups are destroyed as usual."""
    state = getattr(module, "PartialState", None)
    if not hasattr(state, "destroy_process_group"):  # an older accelerate
        return

    @around(state, "destroy_process_group")
    def destroy_process_group(original: Any, self: Any, group: Any = None) -> None:
        if group is not None or not sys.modules["torch.distributed"].is_initialized():
            original(self, group)
            return
        situation.report("accelerate does not destroy the process group: it ends with the script")


def call_in_ranks(situation: Situation, module: Any) -> None:
    """notebook_launcher calls its function in this rank. `module`: accelerate.launchers."""

    @around(module, "notebook_launcher")
    def notebook_launcher(
        original: Any,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        num_processes: int | None = None,
        *rest: Any,
        **options: Any,
    ) -> None:
        ranks = situation.world_size
        if ranks == 1 and num_processes in (None, 1):
            original(function, args, num_processes, *rest, **options)
            return
        if ranks == 1:
            raise UsageError(
                f"the script calls notebook_launcher(num_processes={num_processes}) in a single rank, expected "
                f"{num_processes} ranks: start it with launch --nproc-per-node {num_processes} -- run SCRIPT.py"
            )
        situation.report(f"notebook_launcher starts no processes: each of the {ranks} ranks calls its function")
        given = inspect.signature(original).bind(function, args, num_processes, *rest, **options).arguments
        before = os.environ.get(_PRECISION)
        os.environ[_PRECISION] = given.get("mixed_precision", "no")
        try:
            function(*args)
        finally:
            os.environ.pop(_PRECISION, None)
            if before is not None:
                os.environ[_PRECISION] = before
