"""The watch on a node: reports the state of its ranks to the launcher, and ends remaining ranks.

The launcher runs one on every node, over a separate ssh session. It prints "ready", then a line of JSON for each
event, until its standard input ends: the job is over, or the launcher is gone. Then it ends every remaining rank.
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
from dataclasses import dataclass, field
from pathlib import Path

from entrypoints.machine import processes
from entrypoints.machine.cgroups import OutOfMemoryKills

# The variable that passes the folder for the ranks' state to the ranks. The same path on every node.
READY = "ready"
POLL_SECONDS = 0.25
# The ranks' time to end on their own when the launcher is gone.
STOP_SECONDS = 3.0


@dataclass
class Member:
    """One rank of this node. `reported`: the events already sent to the launcher."""

    pid: int
    local_rank: int
    code: int | None = None
    at: float = 0.0
    stopped_polls: int = 0
    reported: set[str] = field(default_factory=set)


def leave_word(folder: Path, rank: int, word: Mapping[str, float]) -> None:
    """Writes a rank's state for the watch, which never sees half of it."""
    half = folder / f".{rank}"
    half.write_text(json.dumps(word), encoding="utf-8")
    half.replace(folder / str(rank))


def main(argv: list[str]) -> int:
    """Watches until standard input ends. `argv`: the folder, which must not exist yet."""
    folder = Path(argv[0])
    folder.mkdir(mode=0o700)
    try:
        _say({"state": READY})
        _watch(folder)
    except BrokenPipeError:  # the launcher is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        _end_ranks(read(folder))
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def read(folder: Path) -> dict[int, Member]:
    """The ranks that have left word, by rank."""
    found = {}
    for path in folder.iterdir():
        if path.name.isdigit():
            word = json.loads(path.read_text(encoding="utf-8"))
            found[int(path.name)] = Member(word["pid"], word["local_rank"], word.get("code"), word.get("at", 0.0))
    return found


def _watch(folder: Path) -> None:
    members: dict[int, Member] = {}
    kills = OutOfMemoryKills()
    open_ended = True
    while open_ended:
        readable, _, _ = select.select([sys.stdin], [], [], POLL_SECONDS)
        open_ended = not readable or bool(os.read(sys.stdin.fileno(), 64))
        for rank, now in read(folder).items():
            member = members.setdefault(rank, now)
            member.code, member.at = now.code, now.at
            for event in _events(member, kills):
                _say({"rank": rank, "local_rank": member.local_rank, **event})


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
    """SIGTERM, then SIGKILL, to the process groups of the ranks that still run."""
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
        return  # it has ended, or its number is another's by now


def _say(event: dict[str, object]) -> None:
    print(json.dumps(event), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
