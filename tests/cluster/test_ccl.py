"""The ccl backend between containers: every collective against a reference, with one and two ranks a node."""

import pytest

from tests.cluster.conftest import inv
from tooling.basis.paths import ROOT

CHECKS = ROOT / "bindings" / "tests"


@pytest.mark.parametrize(
    ("nodes", "ranks_per_node", "options"),
    [(2, 1, ()), (3, 1, ()), (4, 1, ()), (2, 2, ()), (2, 2, ("--env=CCL_WORKER_COUNT=2",))],
    ids=["two", "three", "four", "two by two", "two by two, two workers each"],
)
def test_every_collective_matches_the_reference_between_containers(
    nodes: int, ranks_per_node: int, options: tuple[str, ...], image: str
) -> None:
    size = (f"--nodes={nodes}", f"--ranks-per-node={ranks_per_node}")
    cluster = ("--name=collectives", *size, "--offline", *options)
    job = ("run", "--backend=ccl", "/data/collectives.py")
    result = inv("up", *cluster, f"--data={CHECKS}", "--", *job)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"results of {nodes * ranks_per_node} ranks are right" in result.stdout
