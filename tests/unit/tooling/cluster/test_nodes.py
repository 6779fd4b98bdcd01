"""The state of a cluster's nodes, and the node that failed first."""

from pathlib import Path

import pytest

from tooling.cluster import nodes
from tooling.cluster.nodes import Node
from tooling.engine.failures import EngineLostError


def test_the_node_that_failed_first_is_named() -> None:
    seen = [
        Node("node-0", exit_code=1, finished_at="2026-01-01T00:00:05Z"),
        Node("node-1", exit_code=137, finished_at="2026-01-01T00:00:04Z"),
        Node("node-2", status="running"),
    ]
    failed = nodes.first_failure(seen, ["node-0", "node-1", "node-2"])
    assert failed is not None
    assert (failed.name, failed.exit_code) == ("node-1", 137)
    assert failed.describe_end() == "ended by signal 9 (exit code 137)"


def test_a_node_that_runs_or_exited_with_0_has_not_failed() -> None:
    assert nodes.first_failure([Node("node-0"), Node("node-1", status="running")], ["node-0", "node-1"]) is None


def test_a_node_whose_container_was_removed_has_failed() -> None:
    failed = nodes.first_failure([Node("node-0", status="running")], ["node-0", "node-1"])
    assert failed is not None
    assert failed.name == "node-1"
    assert failed.exit_code != 0


def test_the_description_of_a_node_that_ran_out_of_memory_names_memory() -> None:
    assert Node("node-0", exit_code=137, out_of_memory=True).describe_end() == "was killed: out of memory"
    earlier = Node("node-0", exit_code=7, out_of_memory=True).describe_end()
    assert earlier == "exited with code 7; one of its processes was killed earlier: out of memory"


def test_a_node_that_has_ended_is_not_stalled() -> None:
    assert Node("node-1", cut_off=True).stall() == ""


def test_an_engine_that_does_not_answer_is_one_line_with_the_cause(tmp_path: Path) -> None:
    endpoint = f"unix://{tmp_path}/docker.sock"
    with pytest.raises(EngineLostError) as caught:
        nodes.read(endpoint)
    assert str(caught.value) == f"the engine at {endpoint} does not answer: No such file or directory"
