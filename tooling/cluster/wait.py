"""Waits for the end of a cluster's job, and brings it about where the job itself would not notice.

Launchers see a rank that ends. A node that is paused or cut off from the network looks to them like one that is
slow; the engine knows better.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

from invoke.exceptions import Exit

from tooling.basis.errors import EngineLostError, UsageError
from tooling.basis.say import Say
from tooling.cluster import compose, nodes
from tooling.cluster.compose import LAUNCHER, ClusterSpec
from tooling.cluster.nodes import Node
from tooling.engine import api

# After the first failure, the other nodes have this long to notice the failure and to end with a message.
GRACE_SECONDS = 10.0
# A node may be paused or disconnected for so long and go on. Longer than the silence after which ssh gives up.
PATIENCE_SECONDS = 20.0
# A lost engine has this long to come back, for example to be restarted by systemd.
RETURN_SECONDS = 60.0
# The job's exit code where no process of it has one.
STUCK_EXIT_CODE = 1
POLL_SECONDS = 0.3


def until_end(spec: ClusterSpec, endpoint: str, say: Say) -> int:
    """The exit code of the cluster's job: 0, or that of the node that failed first. No job runs afterwards.

    Raises EngineGoneError if the engine is lost and does not come back.
    """
    watchdog = Watchdog(say)
    deadline = None
    while True:
        try:
            seen = nodes.read(endpoint, spec.project)
        except EngineLostError as error:
            say(str(error))
            until_engine_is_back(spec.name, endpoint, say)
            continue
        now = time.monotonic()
        failed = nodes.first_failure(seen, expected=spec.service_names)
        stuck = watchdog.stuck(seen, now)
        if failed and deadline is None:
            say(f"{failed.name} {failed.describe()}")
            deadline = now + GRACE_SECONDS
        running = [node.name for node in seen if node.running]
        # mpirun's nodes wait for ssh: they are done when its launcher is.
        over = LAUNCHER not in running if spec.launcher == "mpirun" else not running
        if over or stuck or (deadline is not None and now > deadline):
            if running:
                if not over:
                    say(f"stopping {', '.join(running)}")
                with suppress(EngineLostError):  # the removal of the containers raises it again
                    compose.call(compose.argv(spec.project, "stop", "--timeout=5"))
            return failed.exit_code if failed else STUCK_EXIT_CODE if stuck else 0
        time.sleep(POLL_SECONDS)


class EngineGoneError(Exit):
    """The engine was lost while a cluster was up, and did not come back."""


def until_engine_is_back(name: str, endpoint: str, say: Say) -> None:
    """Waits for a lost engine; restarts an engine that this checkout had started. Raises EngineGoneError."""
    deadline = time.monotonic() + RETURN_SECONDS
    try:
        api.start_again(say)
    except UsageError as error:
        say(str(error))
    while True:
        try:
            nodes.read(endpoint)
        except EngineLostError:
            if time.monotonic() > deadline:
                raise EngineGoneError(
                    f"the engine has not come back within {RETURN_SECONDS:.0f} s: start it; the next ./inv up "
                    f"--name {name} or ./inv down --name {name} removes what is left of the cluster",
                    code=STUCK_EXIT_CODE,
                ) from None
            time.sleep(1.0)
        else:
            say("the engine is back")
            return


class Watchdog:
    """Reports nodes that are paused or cut off, and detects when that lasts too long."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._since: dict[str, float] = {}

    def stuck(self, seen: Sequence[Node], now: float) -> bool:
        """Whether a node has been paused or cut off for PATIENCE_SECONDS. `now`: a monotonic clock's seconds."""
        held = {node.name: node.held_back() for node in seen if node.held_back()}
        for name in [name for name in self._since if name not in held]:
            del self._since[name]
            self._say(f"{name} is back")
        for name, why in held.items():
            if name not in self._since:
                self._since[name] = now
                self._say(f"{name} {why}")
        late = [name for name, since in self._since.items() if now - since > PATIENCE_SECONDS]
        if late:
            self._say(f"{', '.join(late)}: not back after {PATIENCE_SECONDS:.0f} s")
        return bool(late)
