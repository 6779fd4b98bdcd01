"""What `launch --max-restarts K` does when a rank fails: it says so, and restarts only what may end otherwise."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Callable

from entrypoints.errors import USAGE_EXIT_CODE

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

Failures = Mapping[int, "ProcessFailure"]


def agent(base: Any, describe: Callable[[Failures], str]) -> Any:
    """torchrun's agent `base` (LocalElasticAgent, or one like it), which prints a line for each restart, as
    `describe` says what failed, and makes none after bad usage."""

    class Agent(base):  # type: ignore[misc]  # torch is untyped on the host
        _remaining_restarts: int

        def _monitor_workers(self, worker_group: Any) -> Any:
            result = super()._monitor_workers(worker_group)
            if result.is_failed() and self._remaining_restarts > 0:
                if is_final(result.failures):
                    self._remaining_restarts = 0
                else:
                    most = worker_group.spec.max_restarts
                    number = most - self._remaining_restarts + 1
                    line = f"{describe(result.failures)}: restart {number} of {most}"
                    print(line, file=sys.stderr, flush=True)
            return result

    return Agent


def is_final(failures: Failures) -> bool:
    """Whether a rank has refused its command line or its input: it would do so again."""
    return any(
        failure.exitcode == USAGE_EXIT_CODE and not failure.error_file_data.get("again", False)
        for failure in failures.values()
    )
