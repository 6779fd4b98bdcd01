"""What `launch --max-restarts K` says of each restart. torchrun's agent tells it to its log only."""

from __future__ import annotations

import logging
import signal
import sys

from entrypoints.failure import how_it_ended
from entrypoints.memory_events import Kills

# Set by `launch` for its ranks: how the agents met, "static" or "c10d".
AGENTS_MEETING = "CPU_TRAIN_STACK_MEETING"
# Where the agent names the first rank of its node that failed: exit code, local rank, pid, program.
_LOGGER = "torch.distributed.elastic.multiprocessing.api"
_FAILED = "failed (exitcode: "


class Restarts(logging.Handler):
    """Prints a line for each failure that is followed by a restart; the last one is for who started the agent."""

    def __init__(self, node: object, max_restarts: int, kills: Kills) -> None:
        super().__init__()
        self._node = node
        self._max_restarts = max_restarts
        self._kills = kills
        self._done = 0

    def emit(self, record: logging.LogRecord) -> None:
        if not str(record.msg).startswith(_FAILED) or self._done == self._max_restarts:
            return
        self._done += 1
        exit_code, local_rank = (int(str(value)) for value in tuple(record.args or ())[:2])
        out_of_memory = exit_code == -signal.SIGKILL and self._kills.any_new()
        self._kills.forget()
        _, what = how_it_ended(exit_code, out_of_memory)
        line = f"a rank (local {local_rank}, node {self._node}) {what}"
        print(f"{line}: restart {self._done} of {self._max_restarts}", file=sys.stderr, flush=True)


def tell(node: object, max_restarts: int, kills: Kills) -> None:
    """From now on. Leaves what the agent's own log shows as it is."""
    logger = logging.getLogger(_LOGGER)
    if not logger.isEnabledFor(logging.ERROR):
        logger.setLevel(logging.ERROR)
        logger.propagate = False
    logger.addHandler(Restarts(node, max_restarts, kills))
