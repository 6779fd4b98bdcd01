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

from cpu_train_stack.adapt.adaptation import Situation
from cpu_train_stack.compat import launcher_variables
from cpu_train_stack.compat.process_group import replace_function

# What torchrun's agent and `rank.start` set for a rank. The agent's file for the rank's error stays.
_VARIABLES = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK"),
    *("ROLE_NAME", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"),
    *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_USE_AGENT_STORE"),
)


def create_group_when_needed(_situation: Situation, module: Any) -> None:
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


def hide_variables(_situation: Situation, _sys: Any) -> None:
    """Only the script's own code sees torchrun's variables."""
    hidden = {name: os.environ.pop(name) for name in _VARIABLES if name in os.environ}
    launcher_variables.supply(hidden, hidden.get)
