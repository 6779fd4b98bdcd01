"""./inv up --print-compose: a Compose file that needs nothing of this checkout."""

from pathlib import Path

import pytest

from cpu_train_stack.cli.errors import UsageError
from tests.unit.tooling.cluster.test_compose import document, single, spec
from tooling.basis.yaml import render
from tooling.cluster import compose
from tooling.cluster.compose import ClusterSpec
from tooling.cluster.up import Options, Request
from tooling.image.choice import Choice


def test_the_file_is_complete_and_not_managed_by_inv() -> None:
    cluster = spec(environment={"A": "1"})
    full = document(cluster, [0, 1])
    found = compose.document(
        "mine", compose.containers(cluster, single([0, 1]), Path("/keys")), False, managed=False
    )
    assert found["name"] == "mine"
    assert list(found["services"]) == ["node-0", "node-1"]
    text = render([found])
    assert not [word for word in ("extends", "labels", str(Path(__file__).parents[4])) if word in text]
    for name, service in found["services"].items():
        assert service["environment"] == {"HOME": "/tmp", "CPU_TRAIN_STACK_GRACE_SECONDS": "0", "A": "1"}
        assert service["cap_drop"] == ["ALL"]
        for key in ("command", "cpuset"):
            assert service[key] == full["services"][name][key]
    assert "labels" in full["services"]["node-0"]


@pytest.mark.parametrize(
    ("launcher", "restarts", "expected"),
    [("mpirun", 0, "--launcher mpirun, whose ssh keys"), ("torchrun", 2, "--print-compose and --max-restarts")],
)
def test_what_a_plain_file_cannot_do_is_refused(launcher: str, restarts: int, expected: str) -> None:
    cluster = ClusterSpec("test", "image", launcher=launcher, command=("train",))
    with pytest.raises(UsageError, match=expected):
        Request(cluster, Choice(None), Options(max_restarts=restarts, print_compose=True))
