"""A job of one rank looks to the script like a plain process, and still runs scripts for torchrun.

Libraries take a rank with LOCAL_RANK for one of several: accelerate wraps its model in DistributedDataParallel,
which copies and exchanges gradients with nobody, and sentence-transformers drops the last batch. So libraries and
child processes do not see torchrun's variables; the script's own code does. The process group is created when the
script creates it or calls a collective.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from cpu_train_stack.adapt.adaptation import Adaptation, Releases, Situation
from cpu_train_stack.cli.import_hooks import after_import
from cpu_train_stack.compat import launcher_variables
from cpu_train_stack.compat.process_group import replace_function

NAME = "single-rank"
# What torchrun's agent and `rank.start` set for a rank. The agent's file for the rank's error stays.
_VARIABLES = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK"),
    *("ROLE_NAME", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"),
    *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_USE_AGENT_STORE"),
)


def _hook(_situation: Situation, module: Any) -> None:
    """Create the group when a function asks for the default group. `module`: torch.distributed."""
    from cpu_train_stack.group import create

    own = os.getpid()
    original = module.distributed_c10d._get_default_group

    @functools.wraps(original)
    def default_group() -> Any:
        if not module.is_initialized() and os.getpid() == own:  # forked children inherit this function
            create.create_pending()
        return original()

    replace_function(original, default_group)


def _install(situation: Situation) -> None:
    if situation.world_size != 1:
        return
    hidden = {name: os.environ.pop(name) for name in _VARIABLES if name in os.environ}
    launcher_variables.supply(hidden, hidden.get)
    after_import("torch.distributed", functools.partial(_hook, situation))


ADAPTATIONS = (
    Adaptation(
        NAME,
        "a job of one rank looks like a plain process, without DDP",
        (Releases("accelerate"),),
        _install,
        when="if the job has one rank",
        obstacle=lambda situation: None if situation.world_size == 1 else "the job has several ranks",
    ),
)
