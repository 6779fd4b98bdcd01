"""The watch on a node: report the state of the node's ranks to the launcher, and end the remaining ranks.

The launcher runs a watch on every node, over a separate ssh session. The watch prints "ready", then a line of
JSON for each event, until its standard input ends: the job has ended, or the launcher is lost. Then the watch
ends every remaining rank. Other input asks the ranks to save a checkpoint and end (last_checkpoint).
The event MUST_END says that the node's container received SIGTERM (server).

Kubernetes replaces the launcher of a drained MPIJob while its ranks still save. The new launcher's watch sends
BUSY, and waits until they have ended.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from cpu_train_stack import contract
from cpu_train_stack.cli.files import LockedError, locked, write_atomic
from cpu_train_stack.machine import last_checkpoint, processes
from cpu_train_stack.machine.cgroups import OutOfMemoryKills

READY, BUSY, CAN_SAVE, MUST_END = "ready", "busy", "can_save", "must_end"
POLL_SECONDS = 0.25
# The ranks' time to exit after SIGTERM.
STOP_SECONDS = 3.0


@dataclass
class Member:
    """One rank of this node. `code`: its exit code, None while it runs. `reported`: the events sent so far."""

    pid: int
    local_rank: int
    code: int | None = None
    at: float = 0.0
    stopped_polls: int = 0
    reported: set[str] = field(default_factory=set)


def write_state(folder: Path, rank: int, state: Mapping[str, float]) -> None:
    """Write a rank's state for the watch, atomically."""
    write_atomic(folder / str(rank), json.dumps(state))


def main(argv: list[str]) -> int:
    """Watch until standard input ends. `argv`: the folder for the ranks' state, which must not exist yet."""
    folder = Path(argv[0])
    folder.mkdir(mode=0o700)
    saving = folder.with_name(f"saving-ranks-{os.getuid()}")
    with ExitStack() as until_end:
        try:
            with locked(saving, lambda: _send({"state": BUSY})):
                pass
            _send({"state": READY})
            _watch(folder, saving, until_end)
        except BrokenPipeError:  # the launcher is lost
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        finally:
            _end_ranks(read(folder))
            shutil.rmtree(folder, ignore_errors=True)
    return 0


def read(folder: Path) -> dict[int, Member]:
    """The ranks that have started, by rank."""
    found = {}
    for path in folder.iterdir():
        if path.name.isdigit():
            state = json.loads(path.read_text(encoding="utf-8"))
            found[int(path.name)] = Member(
                state["pid"], state["local_rank"], state.get("code"), state.get("at", 0.0)
            )
    return found


def _watch(folder: Path, saving: Path, until_end: ExitStack) -> None:
    """`saving`: locked in `until_end` once the ranks are asked to save."""
    members: dict[int, Member] = {}
    kills = OutOfMemoryKills()
    ends = os.environ.get(contract.NODE_ENDS)
    is_open, can_save = True, False
    while is_open:
        readable, _, _ = select.select([sys.stdin], [], [], POLL_SECONDS)
        if readable:
            is_open = bool(os.read(sys.stdin.fileno(), 64))
            if is_open:
                with suppress(LockedError):
                    until_end.enter_context(locked(saving, None))
                (folder / last_checkpoint.STOP).touch()
        if can_save != (folder / last_checkpoint.READY).exists():
            can_save = not can_save
            _send({"state": CAN_SAVE, "now": can_save})
        if ends and Path(ends).exists():
            ends = None
            _send({"state": MUST_END})
        for rank, now in read(folder).items():
            member = members.setdefault(rank, now)
            member.code, member.at = now.code, now.at
            for event in _events(member, kills):
                _send({"rank": rank, "local_rank": member.local_rank, **event})


def _events(member: Member, kills: OutOfMemoryKills) -> list[dict[str, object]]:
    events: list[dict[str, object]] = []
    if member.code is not None and "end" not in member.reported:
        member.reported.add("end")
        out_of_memory = member.code == -signal.SIGKILL and kills.any_new()
        events.append({"state": "ended", "code": member.code, "at": member.at, "out_of_memory": out_of_memory})
    stopped = member.code is None and processes.state(member.pid) == "T"
    member.stopped_polls = member.stopped_polls + 1 if stopped else 0
    if member.stopped_polls == processes.STOPPED_SECONDS / POLL_SECONDS and "stop" not in member.reported:
        member.reported.add("stop")
        events.append({"state": "stopped"})
    return events


def _end_ranks(members: dict[int, Member]) -> None:
    """Send SIGTERM, then SIGKILL, to the process groups of the running ranks."""
    end = time.monotonic() + STOP_SECONDS
    for number in (signal.SIGTERM, signal.SIGKILL):
        running = [
            member.pid for member in members.values() if member.code is None and processes.state(member.pid)
        ]
        for pid in running:
            _signal(pid, number)
        while number == signal.SIGTERM and any(processes.state(pid) not in ("", "Z") for pid in running):
            if time.monotonic() > end:
                break
            time.sleep(0.1)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(os.getpgid(pid), number)
    except (ProcessLookupError, PermissionError):
        return  # it has ended, or another user's process has its PID


def _send(event: dict[str, object]) -> None:
    print(json.dumps(event), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
