"""The progress that a TrainJob shows in its status, sent from a thread.

transformers posts it from Trainer's loop, and waits up to five seconds for each answer. A server that does not
answer would stop all ranks half of the time.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from cpu_train_stack.adapt.adaptation import Situation
from cpu_train_stack.adapt.changes import around

_SECONDS_BETWEEN = 5.0
# How long the end of the training waits for the last update. transformers itself waits for five seconds.
_LAST_SECONDS = 6.0


def hook(_situation: Situation, module: Any) -> None:
    """Send updates from a thread, and the steps of a training that was stopped instead of 100%.

    `module`: transformers.integrations.integration_utils.
    """
    callback = getattr(module, "KubeflowCallback", None)
    if not hasattr(callback, "_update_status"):
        return

    @around(callback, "_update_status")
    def send(original: Any, self: Any, *, force: bool = False, **status: Any) -> bool:
        """Send one update, unless the last one was sent just now or is still under way."""
        sent, sending = self.__dict__.get("_sent", (0.0, None))
        is_busy = sending is not None and sending.is_alive()
        if not force and (is_busy or time.monotonic() - sent < _SECONDS_BETWEEN):
            return False
        is_last, started = status.get("progress_percent") == 100, time.monotonic()
        if is_last and is_busy:
            sending.join(_LAST_SECONDS)
        if is_last and self._ended_at[0] < self._ended_at[1]:
            step, planned = self._ended_at
            status.update(progress_percent=100 * step // planned, estimated_time_remaining=None)
        options = {**status, "force": True}
        thread = threading.Thread(target=original, args=(self,), kwargs=options, name="progress", daemon=True)
        self._sent = time.monotonic(), thread
        thread.start()
        if is_last:
            thread.join(max(0.0, started + _LAST_SECONDS - time.monotonic()))
        return True

    @around(callback, "on_train_end")
    def end(original: Any, self: Any, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._ended_at = state.global_step, state.max_steps
        original(self, args, state, control, **more)
