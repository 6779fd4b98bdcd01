"""`launch --max-restarts K`: report each restart, and do not restart after bad usage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Callable

from entrypoints import contract
from entrypoints.cli.say import say

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

Failures = Mapping[int, "ProcessFailure"]


def agent(base: Any, describe: Callable[[Failures], str]) -> Any:
    """A subclass of torchrun's agent `base` (LocalElasticAgent) that prints a line for each restart.

    `describe` returns the line about the failures. After bad usage, the agent does not restart.
    """

    def _monitor_workers(self: Any, worker_group: Any) -> Any:
        result = base._monitor_workers(self, worker_group)
        if result.is_failed() and self._remaining_restarts > 0:
            if is_final(result.failures):
                self._remaining_restarts = 0
            else:
                most = worker_group.spec.max_restarts
                number = most - self._remaining_restarts + 1
                say(f"{describe(result.failures)}: restart {number} of {most}")
        return result

    return type("Agent", (base,), {"_monitor_workers": _monitor_workers})


def is_final(failures: Failures) -> bool:
    """Whether a rank has rejected its command line or its input: after a restart, it would fail again."""
    return any(
        failure.exitcode == contract.USAGE_EXIT_CODE and not failure.error_file_data.get("again", False)
        for failure in failures.values()
    )
