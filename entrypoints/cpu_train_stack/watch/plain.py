"""A snapshot as one line, for logs, pipes and screen readers. Pure."""

from __future__ import annotations

import time

from cpu_train_stack.page.texts import duration, number
from cpu_train_stack.records.record import Event
from cpu_train_stack.watch.snapshot import Snapshot


def line(now: Snapshot) -> str:
    """`step 120/400 (30%), 9 min left, loss 0.4312, 52.1 samples/s, 7,340 tokens/s; ...`"""
    done = f"step {now.step}/{now.planned} ({now.step / now.planned:.0%})" if now.planned else f"step {now.step}"
    parts = [done]
    if now.remaining is not None:
        parts.append(f"{duration(now.remaining)} left")
    if now.loss:
        parts.append(f"loss {number(now.loss[-1][1])}")
    if now.metric:
        parts.append(f"{now.metric_name.replace('eval_', '')} {number(now.metric[-1][1])}")
    if now.samples is not None:
        parts.append(f"{number(now.samples)} samples/s")
    if now.tokens is not None:
        parts.append(f"{number(now.tokens)} tokens/s")
    text = ", ".join(parts)
    if now.state == "silent":
        text += f"; no record for {duration(now.silent)}: the job may hang, or was killed"
    elif now.state == "restarting":
        text += f"; failed ({now.ending}): waiting for a restart"
    else:
        text += "".join(f"; {one}" for one in problems(now))
    return f"{clock(now.time)}  {text}"


def problems(now: Snapshot) -> list[str]:
    """What slows the job down."""
    straggler = [now.straggler.headline] if now.straggler is not None else []
    return [*straggler, *(one.what for one in now.findings)]


def event(happened: Event) -> str:
    """`12:03:10  checkpoint at step 100 (1.2 s)`"""
    took = f" ({duration(happened.seconds)})" if happened.seconds else ""
    why = f": {happened.text}" if happened.text else ""
    return f"{clock(happened.time)}  {happened.name} at step {happened.step}{took}{why}"


def ending(now: Snapshot) -> str:
    """The last line."""
    if now.state == "gone":
        return f"ended after step {now.step} without a recorded end: it was stopped or killed"
    if now.state in ("failed", "stopped"):
        why = f": {now.ending}" if now.ending else ""
        return f"{now.state} at step {now.step} after {duration(now.elapsed)}{why}"
    return f"finished {now.step} steps in {duration(now.elapsed)}"


def clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))
