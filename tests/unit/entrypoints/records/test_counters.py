"""The counters of a process, from recorded files of /proc and /sys and from this process's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cpu_train_stack.machine import cgroups
from cpu_train_stack.records.counters import Counters, grown, most_delayed, remote_share

NUMA_MAPS = """\
7f0000000000 default anon=100 dirty=100 N0=60 N1=40 kernelpagesize_kB=4
7f1000000000 default file=/usr/lib/libc.so.6 mapped=20 N1=20 kernelpagesize_kB=4
7f2000000000 prefer:0 huge anon=1 dirty=1 N0=1 kernelpagesize_kB=2048
7fff00000000 default stack
"""


def test_this_process() -> None:
    counters = Counters(sorted(os.sched_getaffinity(0)))
    sample = counters.sample(7)
    assert sample.step == 7
    assert 10e6 < sample.memory < 10e9
    assert sample.processor > 0
    assert (sample.delayed, sample.remote) == (None, None)
    assert str(os.getpid()) in counters.delays()


def test_recorded_files(tmp_path: Path) -> None:
    own = tmp_path / "self"
    for thread, delay in (("1", 2_000_000_000), ("2", 5_000_000_000)):
        (own / "task" / thread).mkdir(parents=True)
        (own / "task" / thread / "schedstat").write_text(f"123 {delay} 4\n")
    (own / "statm").write_text("5000 300 20 1 0 400 0\n")
    (own / "sched").write_text("python (1, #threads: 2)\n---\nnr_switches : 12\nse.nr_migrations : 34\n")
    (own / "numa_maps").write_text(NUMA_MAPS)
    frequency = tmp_path / "sys/devices/system/cpu/cpu2/cpufreq/scaling_cur_freq"
    frequency.parent.mkdir(parents=True)
    frequency.write_text("2794750\n")
    counters = Counters([2, 3], nodes=[0], proc=tmp_path, sys=tmp_path / "sys")
    first, later = counters.sample(1), counters.sample(10)
    assert (first.memory, first.migrations, first.clock) == (300 * os.sysconf("SC_PAGE_SIZE"), 34, 2794.8)
    assert first.remote is None
    assert later.remote == pytest.approx((40 + 20) * 4 / (100 * 4 + 20 * 4 + 2048), abs=1e-4)
    assert counters.delays() == {"1": 2.0, "2": 5.0}


def test_the_most_delayed_thread_counts_only_what_it_was_delayed_in_between() -> None:
    assert most_delayed({"1": 1.0, "2": 5.0}, {"1": 1.5, "2": 5.1, "3": 9.0}) == 0.5
    assert most_delayed({}, {}) == 0.0


def test_the_pauses_of_a_quota_are_no_delays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "self/task/1").mkdir(parents=True)
    found = []
    for delay, paused in (
        (2.0, 7.0),
        (2.6, 7.5),
        (2.7, 8.5),
    ):  # the pauses are those of all CPUs
        (tmp_path / "self/task/1/schedstat").write_text(f"123 {delay * 1e9:.0f} 4\n")
        monkeypatch.setattr(cgroups, "throttled_seconds", lambda paused=paused: paused)
        found.append(Counters([0], proc=tmp_path).delays())
    assert most_delayed(found[0], found[1]) == pytest.approx(0.1)
    assert most_delayed(found[1], found[2]) == 0.0


def test_no_pages_have_no_remote_share() -> None:
    assert remote_share("", frozenset({0})) is None


def test_a_counter_goes_on_after_a_restart_of_the_process() -> None:
    assert grown([5.0, 7.0, 1.0, 2.0]) == [0.0, 2.0, 3.0, 4.0]
