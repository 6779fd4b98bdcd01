"""What a rank's records say about how it was started."""

from __future__ import annotations

import json

import pytest

from entrypoints.machine import topology
from entrypoints.placement.detect import DistributedEnvironment
from entrypoints.plan import planner, preload
from entrypoints.records import origin, record


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("train --hub_token hf_abc --max_steps 3", "train --hub_token <hidden> --max_steps 3"),
        ("train --hub-token=hf_abc", "train --hub-token=<hidden>"),
        ("run main.py API_KEY=abc --password abc", "run main.py API_KEY=<hidden> --password <hidden>"),
        ("train --tokenizer_name a --max_tokens 3", "train --tokenizer_name a --max_tokens 3"),
        ("run secret.py token", "run secret.py token"),
    ],
)
def test_secrets_are_not_recorded(command: str, shown: str) -> None:
    assert " ".join(origin.without_secrets(command.split())) == shown


def test_a_rank_knows_its_plan_and_the_first_one_of_a_node_its_topology(monkeypatch: pytest.MonkeyPatch) -> None:
    host = topology.read()
    for local_rank in (0, 1):
        place = DistributedEnvironment(local_rank, 2, local_rank, 2, launcher="torchrun")
        plan = planner.plan(place, host, {}, preload.find({}), "gloo")
        monkeypatch.setattr(origin, "_FOUND", {})
        origin.keep(origin.export(["train"], plan, host, [{"name": "shm", "status": "warning"}]))
        start = origin.start(threads=3, last_step=10)
        assert (start.rank, start.world_size, start.launcher, start.backend) == (local_rank, 2, "torchrun", "gloo")
        assert start.plan["reasons"]
        assert [start.checks, bool(start.topology)] == (
            [[{"name": "shm", "status": "warning"}], True],
            [[], False],
        )[local_rank]
        assert json.loads(record.encode(start))["threads"] == 3
