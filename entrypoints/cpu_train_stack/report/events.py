"""What happened when: starts, evaluations, checkpoints, failures and the end, as a strip and a table. Pure."""

from __future__ import annotations

from dataclasses import replace

from cpu_train_stack.page.blocks import Block, Lane, Mark, Strip, Table
from cpu_train_stack.page.texts import duration, moment
from cpu_train_stack.records.job import RecordedJob
from cpu_train_stack.records.record import Event
from cpu_train_stack.report import summary

KINDS = ("start", "evaluation", "checkpoint", "failure", "stop", "end")  # in the order of their lanes
_MOST_MARKS = 400  # of a lane
_MOST_ROWS = 200
_FEW_ROWS = 12
# A job has few of these, and each is important.
_ALWAYS = ("start", "failure", "stop", "end")


def happenings(job: RecordedJob) -> list[Event]:
    """The events of the rank that logs, and the failures of the other ranks, with the times when they began.

    None began before the job: records of older images count from the machine's start.
    """
    first, begin = job.first, summary.began(job)
    found = []
    for place, start in enumerate(first.starts):
        from_step = f"from step {start.first_step:,}" if start.first_step else "from the beginning"
        begins = "started again" if start.training == 1 else f"training {start.training}"
        text = f"{begins} {from_step}" if place else "" if not start.first_step else from_step
        found.append(Event(start.time, start.first_step, "start", text=text))
    for number, rank in job.ranks.items():
        for event in rank.events:
            if rank is first or event.name == "failure":
                names_rank = job.world_size == 1 or event.text.startswith("rank ")
                who = "" if names_rank or event.name != "failure" else f"rank {number}: "
                seconds = min(event.seconds, max(0.0, event.time - begin))
                found.append(replace(event, time=event.time - seconds, seconds=seconds, text=who + event.text))
    return sorted(found, key=lambda one: one.time)


def blocks(job: RecordedJob) -> list[Block]:
    """The strip and the table."""
    found = happenings(job)
    begin = summary.began(job)
    last = max([job.time, *(one.time + one.seconds for one in found)])
    lanes = []
    for kind in KINDS:
        marks = [
            Mark(max(0.0, one.time - begin), one.seconds, _words(one, begin)) for one in found if one.name == kind
        ]
        if marks:
            # Of many, every n-th: the strip has no room for more.
            lanes.append(Lane(kind, marks[:: -(-len(marks) // _MOST_MARKS)]))
    return [Strip("Time line", max(last - begin, 1.0), lanes), _table(found, begin)]


def repeated(job: RecordedJob) -> str:
    """How many steps were computed again after a failure; empty if none."""
    most = max(rank.repeated for rank in job.ranks.values())
    if not most:
        return ""
    return f"{most:,} {'step was' if most == 1 else 'steps were'} computed again after a restart"


def _words(one: Event, begin: float) -> str:
    took = f", took {duration(one.seconds)}" if one.seconds else ""
    text = f": {one.text}" if one.text else ""
    return f"{one.name} at step {one.step:,}, {duration(max(0.0, one.time - begin))}{took}{text}"


def _table(found: list[Event], begin: float) -> Table:
    """Of many events, all starts, failures and ends, and the last ones of the rest."""
    shown, note = found, ""
    if len(found) > _MOST_ROWS:
        rest = [one for one in found if one.name not in _ALWAYS][-_MOST_ROWS:]
        shown = sorted([*rest, *(one for one in found if one.name in _ALWAYS)], key=lambda one: one.time)
        note = f"{len(shown)} of {len(found)} events: all starts and failures, and the last ones of the others"
    rows = [
        [
            moment(one.time),
            duration(max(0.0, one.time - begin)),
            f"{one.step:,}",
            one.name,
            duration(one.seconds) if one.seconds else "",
            one.text,
        ]
        for one in shown
    ]
    columns = ["time", "elapsed", "step", "event", "took", "details"]
    return Table("Events", columns, rows, (1, 2, 4), folded=len(rows) > _FEW_ROWS, note=note)
