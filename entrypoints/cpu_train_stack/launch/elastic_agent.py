"""torchrun's agent that also prints restarts, waits for the other nodes, and lets ranks save a last checkpoint.

torch's agent exits with code 0 at most 300 s after its own ranks have succeeded (exit_barrier_timeout), even if
other ranks are still running or fail later. training-operator then reports success for the whole job, and deletes
the other pods, even if rank 0 is still saving. Here, an agent exits with code 0 only after the ranks of all nodes
have succeeded.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Callable

from cpu_train_stack import contract
from cpu_train_stack.cli.say import say
from cpu_train_stack.machine.last_checkpoint import LastCheckpoint

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

Failures = Mapping[int, "ProcessFailure"]  # by global rank

# How often a node writes to the store that it is alive.
_ALIVE_SECONDS = 5.0
# While a node stops its ranks, which takes up to 30 s, it does not write.
_LEAST_SILENT_SECONDS = 60.0
# How long a node waits for node 0 to exit first, and then for node 0's container to stop.
_LEAVE_SECONDS, _AFTER_SECONDS, _POLL_SECONDS = 10.0, 1.0, 0.1
_LEAVING, _LEFT = "cpu-train-stack/leaving", "cpu-train-stack/left"
# Counters, because the stores of torch 1.10 cannot say whether a key exists.
_SUCCEEDED, _FAILED = "cpu-train-stack/succeeded", "cpu-train-stack/failed"
_WHY = "cpu-train-stack/why"


class FailedElsewhereError(Exception):
    """The ranks of this node have succeeded, but another node is lost, or its ranks have failed for good."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class PeerNodes:
    """The results of the ranks of all nodes, which the nodes share in the store of one rendezvous."""

    def __init__(self, store: Any, node_rank: int, nodes: int, silent_seconds: float) -> None:
        """`silent_seconds`: a node that writes nothing for this long is lost."""
        self._store, self._own, self._nodes = store, node_rank, nodes
        self._limit = silent_seconds
        self._beats, self._next_beat = 0, 0.0
        self._heard = 0, time.monotonic()  # what the next node wrote last, and when
        self._has_told = False
        self.report_alive()

    def report_alive(self) -> None:
        """Call this regularly while the ranks run."""
        now = time.monotonic()
        if self._nodes > 1 and now >= self._next_beat:
            self._beats, self._next_beat = self._beats + 1, now + _ALIVE_SECONDS
            # `set` does not wait for a reply. If the node of the store has ended, the ranks will fail.
            with suppress(RuntimeError):
                self._store.set(_alive(self._own), str(self._beats))

    def fail(self, exit_code: int) -> None:
        """Report that the ranks of this node have failed and are not restarted."""
        if self._nodes > 1:
            with suppress(RuntimeError):
                self._give_up(f"{exit_code} the ranks of node {self._own} have failed")

    def all_succeeded(self) -> bool:
        """Whether all ranks have succeeded. Call it once those of this node have. Raises FailedElsewhereError."""
        if self._nodes == 1:
            return True
        try:
            count = self._store.add(_SUCCEEDED, 0 if self._has_told else 1)
            self._has_told = True
            if count == self._nodes:
                return True
            self._find_failure()
        except RuntimeError as error:  # of the store: its node has ended
            text = "the node where the nodes meet has ended before all ranks had succeeded: the job has failed"
            raise FailedElsewhereError(text, 1) from error
        return False

    def leave(self) -> None:
        """Call this after all ranks have succeeded. Returns at once on node 0, and later on the other nodes.

        An operator may delete the other nodes as soon as the first one has exited, and node 0 has rank 0's log.
        """
        if self._nodes == 1:
            return
        end = time.monotonic() + _LEAVE_SECONDS
        with suppress(RuntimeError):  # the store has ended, usually with node 0
            self._store.add(_LEAVING, 1)
            while time.monotonic() < end:
                if self._own == 0 and self._store.add(_LEAVING, 0) == self._nodes:
                    self._store.add(_LEFT, 1)
                    return
                if self._store.add(_LEFT, 0):
                    end = min(end, time.monotonic() + _AFTER_SECONDS)
                time.sleep(_POLL_SECONDS)
        if self._own:
            time.sleep(_AFTER_SECONDS)

    def _find_failure(self) -> None:
        # It is enough to check the next node: before every lost node, there is one that is not lost.
        now, beside = time.monotonic(), (self._own + 1) % self._nodes
        heard = self._store.add(_alive(beside), 0)
        if heard != self._heard[0]:
            self._heard = heard, now
        elif now - self._heard[1] > self._limit:
            self._give_up(f"1 node {beside} has not responded for {self._limit:g} s")
        if self._store.add(_FAILED, 0):
            code, _, text = self._store.get(_WHY).decode().partition(" ")
            raise FailedElsewhereError(f"{text}: the job has failed", int(code))

    def _give_up(self, why: str) -> None:
        """Tell all nodes that the job has failed. `why`: the exit code, and a sentence."""
        if not self._store.add(_FAILED, 0):
            self._store.set(_WHY, why)
            self._store.add(_FAILED, 1)


def _alive(node_rank: int) -> str:
    return f"cpu-train-stack/alive/{node_rank}"


def agent_class(
    base: Any,
    describe: Callable[[Failures], str],
    exit_code_of: Callable[[Failures], int],
    last_checkpoint: LastCheckpoint,
    join_seconds: float,
    can_join_again: bool,
) -> Any:
    """A subclass of torchrun's agent `base` (LocalElasticAgent).

    `describe` returns the line about the failures before a restart. After bad usage, the agent does not restart.
    `join_seconds`: how long nodes wait for each other. `can_join_again`: a new node may replace a lost one.
    """

    def _start_workers(self: Any, worker_group: Any) -> Any:
        self._own_success = None
        self._nodes = PeerNodes(
            worker_group.store,
            worker_group.group_rank,
            worker_group.group_world_size,
            max(_LEAST_SILENT_SECONDS, join_seconds),
        )
        started = base._start_workers(self, worker_group)
        last_checkpoint.handle()  # torch has set its handlers
        return started

    def _monitor_workers(self: Any, worker_group: Any) -> Any:
        self._nodes.report_alive()
        result = self._own_success or base._monitor_workers(self, worker_group)
        if result.state.name == "SUCCEEDED":
            self._own_success = result
            last_checkpoint.forget_ranks()
            # A healthy node starts its ranks again if another one has come back and waits for it.
            is_over = self._nodes.all_succeeded()
            return result if is_over else dataclasses.replace(result, state=type(result.state).HEALTHY)
        if result.is_failed():
            last_checkpoint.forget_ranks()
            if last_checkpoint.is_asked or is_final(result.failures):
                self._remaining_restarts = 0
        if result.is_failed() and self._remaining_restarts > 0:
            most = worker_group.spec.max_restarts
            say(f"{describe(result.failures)}: restart {most - self._remaining_restarts + 1} of {most}")
        elif result.is_failed():
            self._nodes.fail(exit_code_of(result.failures))
        return result

    def _exit_barrier(self: Any) -> None:
        self._nodes.leave()

    def _shutdown(self: Any, *arguments: Any, **options: Any) -> None:
        ended = arguments[0] if arguments else options.get("death_sig")
        if ended is not None and not can_join_again and hasattr(self, "_nodes"):
            self._nodes.fail(128 + ended)
        base._shutdown(self, *arguments, **options)

    functions = (_start_workers, _monitor_workers, _exit_barrier, _shutdown)
    methods = {function.__name__: function for function in functions}
    return type("Agent", (base,), methods)


def is_final(failures: Failures) -> bool:
    """Whether a rank has rejected its command line or its input and would fail again, or was asked to end."""
    return any(
        failure.exitcode in contract.FINAL_EXIT_CODES and not failure.error_file_data.get("again", False)
        for failure in failures.values()
    )
