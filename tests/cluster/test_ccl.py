"""The ccl backend between containers: every collective against a reference, with one and two ranks a node."""

from pathlib import Path

import pytest

from tests.cluster.conftest import inv
from tests.image.test_ccl_workers import CALLS
from tooling.basis.paths import ROOT

CHECKS = ROOT / "bindings" / "tests"


# An odd number of nodes, and several ranks on each: other groups of nodes go through the same code.
@pytest.mark.parametrize(("nodes", "ranks_per_node"), [(3, 1), (2, 2)], ids=["three", "two by two"])
def test_every_collective_matches_the_reference_between_containers(
    nodes: int, ranks_per_node: int, image: str
) -> None:
    cluster = ("--name=collectives", f"--nodes={nodes}", f"--ranks-per-node={ranks_per_node}", "--offline")
    job = ("run", "--backend=ccl", "/data/collectives.py")
    result = inv("up", *cluster, f"--data={CHECKS}", "--", *job)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"results of {nodes * ranks_per_node} ranks are right" in result.stdout


def test_all_calls_complete_between_containers_with_several_workers(scripts: Path, image: str) -> None:
    (scripts / "calls.py").write_text(CALLS)
    cluster = ("--name=workers", "--nodes=2", "--ranks-per-node=2", "--offline", "--env=CCL_WORKER_COUNT=2")
    job = ("run", "--backend=ccl", "--timeout=60", "/data/calls.py")
    result = inv("up", *cluster, f"--data={scripts}", "--", *job)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("is done") == 4
