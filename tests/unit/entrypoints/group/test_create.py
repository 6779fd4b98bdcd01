"""The one-line errors for ranks and nodes that do not meet."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

import cpu_train_stack.group
from cpu_train_stack.placement.detect import DistributedEnvironment


@pytest.fixture
def create(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A copy of cpu_train_stack.group.create without torch."""
    for name in ("torch", "torch.distributed"):
        monkeypatch.setitem(sys.modules, name, MagicMock())
    path = Path(cpu_train_stack.group.__file__).parent / "create.py"
    spec: Any = importlib.util.spec_from_file_location("create_without_torch", path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("Socket Timeout"), "not all 2 nodes met at node-0:29500 within 4 s: "),
        (
            RuntimeError("wait timeout after 4000ms, keys: /none/torchelastic/assigned_ranks/1"),
            "not all 2 nodes met at node-0:29500 within 4 s: ",
        ),
        (
            RuntimeError("Timed out after 4 seconds waiting for clients. 1/2 clients joined."),
            "only 1 of 2 nodes met at node-0:29500 within 4 s: ",
        ),
        (
            TimeoutError("The client socket has timed out while trying to connect to (node-0, 29500)."),
            "the launcher of node 0 cannot be reached at node-0:29500 within 4 s",
        ),
        (RuntimeError("EADDRINUSE"), "port 29500 on this host is in use"),
        (RuntimeError("no idea"), "the process group cannot be created (no idea)"),
    ],
    ids=[
        "torch 2.0: a node is missing",
        "on another node",
        "a node is missing",
        "torch 2.0: no node 0",
        "port",
        "unknown",
    ],
)
def test_nodes_that_do_not_meet_are_one_line(create: Any, error: Exception, expected: str) -> None:
    launcher = DistributedEnvironment(0, 2, 0, 1, 0, "node-0", launcher="launch")
    assert create.explain(error, launcher, 4.0).startswith(expected)
