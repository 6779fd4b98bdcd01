"""Nodes that are paused or cut off. tests/cluster has the tests with a real engine."""

from __future__ import annotations

from typing import Any

import pytest

from tooling.cluster.nodes import Node
from tooling.cluster.wait import PATIENCE_SECONDS, Watchdog


def node(name: str, **more: Any) -> Node:
    return Node(name, running=True, **more)


def test_a_paused_node_is_reported_at_once_and_stuck_later(capsys: pytest.CaptureFixture[str]) -> None:
    watchdog = Watchdog()
    seen = [node("node-0"), node("node-1", paused=True)]
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
