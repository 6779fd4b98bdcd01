"""Nodes that are paused or cut off. tests/cluster has the tests with a real engine."""

import os
import sys
from typing import Any

import pytest

from cpu_train_stack.cli.say import say
from tooling.cluster import nodes, wait
from tooling.cluster.compose import ClusterSpec
from tooling.cluster.nodes import Node
from tooling.cluster.wait import PATIENCE_SECONDS, Watchdog


def node(name: str, **more: Any) -> Node:
    return Node(name, **{"status": "running", **more})


def test_a_paused_node_is_reported_at_once_and_stuck_later(capsys: pytest.CaptureFixture[str]) -> None:
    watchdog = Watchdog()
    seen = [node("node-0"), node("node-1", status="paused")]
    assert not watchdog.stuck(seen, now=100.0)
    assert capsys.readouterr().err.splitlines() == ["node-1 is paused"]
    assert not watchdog.stuck(seen, now=100.0 + PATIENCE_SECONDS)
    assert watchdog.stuck(seen, now=101.0 + PATIENCE_SECONDS)
    assert capsys.readouterr().err.splitlines() == [f"node-1: not back after {PATIENCE_SECONDS:.0f} s"]


def test_a_node_that_comes_back_has_the_full_time_again(capsys: pytest.CaptureFixture[str]) -> None:
    watchdog = Watchdog()
    cut_off = [node("node-1", cut_off=True)]
    assert not watchdog.stuck(cut_off, now=0.0)
    assert not watchdog.stuck([node("node-1")], now=PATIENCE_SECONDS)
    assert not watchdog.stuck(cut_off, now=PATIENCE_SECONDS + 1)
    assert not watchdog.stuck(cut_off, now=2 * PATIENCE_SECONDS)
    reported = "node-1 is cut off: its container has left the cluster's network"
    assert capsys.readouterr().err.splitlines() == [reported, "node-1 is back", reported]


def test_a_closed_standard_error_does_not_change_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    ended = [Node("node-0", exit_code=7, finished_at="1"), Node("node-1", exit_code=1, finished_at="2")]
    monkeypatch.setattr(nodes, "read", lambda *_: ended)
    spec = ClusterSpec("test", "image", nodes=2, command=("train",))
    with os.fdopen(writes, "w") as closed:
        monkeypatch.setattr(sys, "stderr", closed)
        assert wait.until_end(spec, "unix:///none") == 7
        say("more")
