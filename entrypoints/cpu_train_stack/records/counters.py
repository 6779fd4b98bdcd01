"""What the kernel counts for this process: memory, CPU time, delays, migrations, clock rate."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cpu_train_stack.cli import files
from cpu_train_stack.machine import cgroups
from cpu_train_stack.records.record import Sample

# Reading the place of every page takes longer the more memory a process has: once, when its memory has settled.
_REMOTE_AFTER_STEPS = 10


class Counters:
    """The counters of this process. `cores`: the CPUs that the rank may use. `proc`, `sys`: replaced by tests."""

    def __init__(
        self, cores: Sequence[int], nodes: Sequence[int] = (), proc: Path = Path("/proc"), sys: Path = Path("/sys")
    ) -> None:
        """`nodes`: the NUMA nodes of the cores; empty on a machine with one node."""
        self._nodes = frozenset(nodes)
        self._proc = proc / "self"
        first = min(cores, default=0)
        self._clock = sys / f"devices/system/cpu/cpu{first}/cpufreq/scaling_cur_freq"
        self._remote: float | None = None
        self._has_remote = not nodes

    def sample(self, step: int, delayed: float | None = None) -> Sample:
        """Takes about a millisecond. `delayed`: as in Sample."""
        if not self._has_remote and step >= _REMOTE_AFTER_STEPS:
            self._has_remote = True
            self._remote = remote_share(files.text(self._proc / "numa_maps"), self._nodes)
        times = os.times()
        clock = files.text(self._clock).strip()
        return Sample(
            time=round(time.time(), 3),
            step=step,
            memory=_resident(files.text(self._proc / "statm")),
            processor=round(times.user + times.system, 3),
            throttled=round(cgroups.throttled_seconds(), 4),
            delayed=None if delayed is None else round(delayed, 4),
            migrations=_migrations(files.text(self._proc / "sched")),
            clock=round(int(clock) / 1000, 1) if clock.isdecimal() else None,
            remote=self._remote,
        )

    def delays(self) -> dict[str, float]:
        """How long each thread has been ready to run while its core ran something else, in seconds.

        Only differences between two calls mean something. The kernel's sched-stats also count the time in which
        a CPU quota pauses a thread: the pauses of the container are subtracted. Takes 20 microseconds for each
        thread.
        """
        paused = cgroups.throttled_seconds()
        found = {}
        for folder in (self._proc / "task").glob("*"):
            fields = files.text(folder / "schedstat").split()
            if len(fields) >= 2:
                found[folder.name] = int(fields[1]) * 1e-9 - paused
        return found


def most_delayed(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """The delay of the most delayed thread between two calls of `Counters.delays`, in seconds."""
    return max([0.0, *(now - before.get(thread, now) for thread, now in after.items())])


def grown(counters: Iterable[float]) -> list[float]:
    """A counter's growth since its first value. It begins again at 0 when the process restarts."""
    total, before, found = 0.0, None, []
    for now in counters:
        if before is not None:
            total += now - before if now >= before else now
        before = now
        found.append(total)
    return found


def remote_share(numa_maps: str, nodes: frozenset[int]) -> float | None:
    """The share of the pages that are not on `nodes`, from /proc/PID/numa_maps (numa(7)). None without pages."""
    pages = {True: 0, False: 0}
    for line in numa_maps.splitlines():
        size = re.search(r"kernelpagesize_kB=(\d+)", line)
        for node, number in re.findall(r"\bN(\d+)=(\d+)", line):
            pages[int(node) in nodes] += int(number) * int(size[1] if size else 4)
    total = sum(pages.values())
    return round(pages[False] / total, 4) if total else None


def _resident(statm: str) -> int:
    fields = statm.split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else 0


def _migrations(sched: str) -> int:
    found = re.search(r"nr_migrations\s*:\s*(\d+)", sched)
    return int(found[1]) if found else 0
