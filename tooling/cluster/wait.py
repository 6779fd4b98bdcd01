"""Waits for the end of a cluster's job, and ends a job that is stuck.

A launcher notices a rank that ends. It cannot tell a node that is paused or cut off from the network from a slow
node, but the engine can.
"""

import time
from collections.abc import Sequence
from contextlib import suppress

from invoke.exceptions import Exit

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.say import say
from tooling.cluster import containers, nodes
from tooling.cluster.compose import LAUNCHER, ClusterSpec
from tooling.cluster.nodes import Node
from tooling.engine import api
from tooling.engine.failures import EngineLostError

# After the first failure, the other nodes have this long to notice the failure and to end with a message.
GRACE_SECONDS = 10.0
# A node that is paused or cut off for at most this long may continue. Longer than ssh's timeout for a silent peer.
PATIENCE_SECONDS = 20.0
# A lost engine has this long to come back, for example to be restarted by systemd.
RETURN_SECONDS = 60.0
# The exit code of a job that was ended because it was stuck.
STUCK_EXIT_CODE = 1
POLL_SECONDS = 0.3


def until_end(spec: ClusterSpec, endpoint: str) -> int:
    """Wait until the job ends, or end it. Return 0, or the exit code of the node that failed first.

    Raises EngineGoneError if the engine is lost and does not come back.
    """
    watchdog = Watchdog()
    deadline = None
    while True:
        try:
            seen = nodes.read(endpoint, spec.project)
        except EngineLostError as error:
            say(str(error))
            until_engine_is_back(spec.name, endpoint)
            continue
        now = time.monotonic()
        failed = nodes.first_failure(seen, expected=spec.service_names)
        stuck = watchdog.stuck(seen, now)
        if failed and deadline is None:
            say(f"{failed.name} {failed.describe_end()}")
            deadline = now + GRACE_SECONDS
        running = [node.name for node in seen if node.running]
        # The nodes of an mpirun cluster run sshd until they are stopped: the job ends with the launcher.
        over = LAUNCHER not in running if spec.launcher == "mpirun" else not running
        if over or stuck or (deadline is not None and now > deadline):
            if running:
                if not over:
                    say(f"stopping {', '.join(running)}")
                with suppress(EngineLostError):  # removing the containers raises the error again
                    containers.stop(spec.project, endpoint)
            return failed.exit_code if failed else STUCK_EXIT_CODE if stuck else 0
        time.sleep(POLL_SECONDS)


class EngineGoneError(Exit):
    """The engine was lost while a cluster ran, and did not come back."""


def until_engine_is_back(name: str, endpoint: str) -> None:
    """Wait for a lost engine. Restart it if this checkout started it. Raises EngineGoneError."""
    deadline = time.monotonic() + RETURN_SECONDS
    try:
        api.start_again(endpoint)
    except UsageError as error:
        say(str(error))
    while True:
        try:
            nodes.read(endpoint)
        except EngineLostError:
            if time.monotonic() > deadline:
                raise EngineGoneError(
                    f"the engine has not come back within {RETURN_SECONDS:.0f} s: start it, then run ./inv down "
                    f"--name {name} to remove what is left of the cluster",
                    code=STUCK_EXIT_CODE,
                ) from None
            time.sleep(1.0)
        else:
            say("the engine is back")
            return


class Watchdog:
    """Reports nodes that are paused or cut off, and detects a stall that lasts too long."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def stuck(self, seen: Sequence[Node], now: float) -> bool:
        """Whether a node has been paused or cut off for PATIENCE_SECONDS. `now`: a monotonic clock's seconds."""
        stalled = {node.name: node.stall() for node in seen if node.stall()}
        for name in self._since.keys() - stalled.keys():
            del self._since[name]
            say(f"{name} is back")
        for name, reason in stalled.items():
            if name not in self._since:
                self._since[name] = now
                say(f"{name} {reason}")
        late = [name for name, since in self._since.items() if now - since > PATIENCE_SECONDS]
        if late:
            say(f"{', '.join(late)}: not back after {PATIENCE_SECONDS:.0f} s")
        return bool(late)
