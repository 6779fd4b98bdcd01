"""The groups of `bench scaling`: every rank creates the same ones, because creating a group is a collective."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from cpu_train_stack.placement.detect import DistributedEnvironment
from tests.unit.entrypoints.bench import without_torch


def test_ranks_of_uneven_nodes_create_the_same_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    scaling = without_torch.load(monkeypatch, "scaling")
    monkeypatch.setattr(scaling, "BACKENDS", {"gloo": lambda *_: None})
    options = SimpleNamespace(backends=("gloo",), timeout_seconds=1.0)

    def groups(rank: int, local_rank: int, ranks_here: int, node: int) -> list[list[int]]:
        """The ranks of each group that this rank creates: one rank on node 0, two on node 1."""
        monkeypatch.setattr(scaling, "dist", MagicMock())
        place = DistributedEnvironment(rank, 3, local_rank, ranks_here, node)
        for nodes in (1, 2):
            scaling._phases(options, place, nodes, [0, 1, 1], MagicMock())
        return [call.args[0] for call in scaling.dist.new_group.call_args_list]

    assert groups(0, 0, 1, 0) == groups(2, 1, 2, 1) == [[0, 1, 2]]


def test_too_many_nodes_are_an_error_of_all_ranks_together(monkeypatch: pytest.MonkeyPatch) -> None:
    scaling = without_torch.load(monkeypatch, "scaling")
    monkeypatch.setattr(scaling, "gather", lambda _: [0, 1])
    monkeypatch.setattr(scaling, "agree", MagicMock(side_effect=SystemExit(2)))
    with pytest.raises(SystemExit):
        scaling.run(SimpleNamespace(nodes=(1, 3)), DistributedEnvironment(0, 2, 0, 1, 0))
    scaling.agree.assert_called_once_with("bench scaling: --nodes has 3, but the job has only 2: start more nodes")
