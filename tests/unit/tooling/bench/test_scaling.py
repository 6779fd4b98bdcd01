"""`./inv bench scaling`: rows, predictions, the table and the picture."""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.machine.facts import Core
from cpu_train_stack.plan.cores import divide
from tooling.bench import plots, scaling
from tooling.bench.forecast.estimate import Estimate
from tooling.bench.forecast.step import ForecastJob, Inputs, step
from tooling.cluster import compose
from tooling.cluster.compose import ClusterSpec
from tooling.cluster.spec import CPU_PERIOD_US, service
from tooling.image.choice import Choice

GRADIENT, EMBEDDING, BUCKETS, BATCH = 52_000_000, 10_000_000, 17, 8
CORES = [Core((cpu,), (cpu,)) for cpu in range(2)]
FACTS = {
    "date": "2026-01-02T03:04:05+00:00",
    "image": "sha256:1",
    "cpus": 2,
    "cores_of_each_node": 0.5,
    "quota_period_us": 100_000,
}
# The nodes of these documents: a step of 0.8 s, a link of 1 GB/s.
TRUE = Inputs(
    samples_per_second=Estimate.exact(BATCH / 0.8),
    bytes_per_second=Estimate.exact(1e9),
    latency_seconds=Estimate.exact(1e-4),
    overlap=Estimate.exact(0),
    cost=Estimate.exact(1.5),
)


def phase(nodes: int, backend: str | None, seconds: Sequence[float]) -> dict[str, Any]:
    exchanges = [{"bytes": 4096, "seconds": [1e-4] * 3}, {"bytes": GRADIENT, "seconds": [0.0521] * 3}]
    return {
        "nodes": nodes,
        "backend": backend,
        "seconds": list(seconds),
        "cpu_share": [0.5, 0.4, 0.5],
        "throttled_share": [0.1, 0.2, 0.3],
        "all_reduce": exchanges if backend else [],
    }


def true_step(nodes: int) -> float:
    job = ForecastJob(10**6, 1, BATCH, GRADIENT, EMBEDDING, buckets=BUCKETS)
    return step(job, nodes, {name: estimate.value for name, estimate in vars(TRUE).items()}).seconds


def measured() -> dict[str, Any]:
    """Two nodes as the model predicts for a cost of 1.5, and four nodes a tenth slower."""
    return {
        "pin": "2.13",
        "torch": "2.13.0+cpu",
        "cpu": "A processor",
        "environment": {"FI_PROVIDER": "tcp"},
        "ranks_per_node": 1,
        "batch": BATCH,
        "length": 32,
        "gradient_bytes": GRADIENT,
        "embedding_bytes": EMBEDDING,
        "buckets": BUCKETS,
        "ratio": 0.12,
        "phases": [
            phase(1, None, [0.8, 0.8, 2.4]),  # all of the third round is slow
            phase(2, None, [0.82, 0.81, 2.46]),
            phase(2, "ccl", [true_step(2), 0.99 * true_step(2), 3.03 * true_step(2)]),
            phase(4, None, [0.9, 0.9, 2.7]),
            phase(4, "ccl", [1.1 * true_step(4), 0.1, 3.3 * true_step(4)]),
        ],
    }


@pytest.fixture
def document() -> dict[str, Any]:
    return scaling.make_document(measured(), FACTS)


def test_a_row_compares_the_steps_of_each_round_with_one_node_and_with_no_exchange(
    document: dict[str, Any],
) -> None:
    rows = {(row["nodes"], row["backend"]): row for row in document["rows"]}
    assert list(rows) == [(1, "none"), (2, "none"), (2, "ccl"), (4, "none"), (4, "ccl")]
    assert rows[1, "none"]["samples_per_second"] == 10  # of 8 in 0.8 s: one slow round does not count
    assert rows[1, "none"]["efficiency"] == 1
    assert rows[4, "none"]["samples_per_second"] == pytest.approx(32 / 0.9, abs=0.01)
    assert rows[4, "none"]["efficiency"] == pytest.approx(0.8 / 0.9, abs=1e-4)
    four = rows[4, "ccl"]
    assert four["efficiency"] == pytest.approx(0.8 / (1.1 * true_step(4)), abs=1e-4)
    assert four["efficiency_to_apart"] == pytest.approx(0.9 / (1.1 * true_step(4)), abs=1e-4)
    assert four["throttled_share"] == 0.2
    assert document["ratio"]["seen"] == {"ccl": pytest.approx(0.0521 / 0.8, abs=1e-4)}


def test_four_nodes_are_predicted_from_one_and_two(document: dict[str, Any]) -> None:
    (one,) = document["predicted"]
    assert (one["nodes"], one["backend"]) == (4, "ccl")
    assert one["samples_per_second"] == pytest.approx(4 * BATCH / true_step(4), rel=0.02)
    low, high = one["samples_per_second_interval"]
    assert low < one["samples_per_second"] < high
    low, high = one["efficiency_interval"]
    assert low < one["efficiency"] < high


def test_the_prediction_for_four_nodes_does_not_depend_on_their_measurement(document: dict[str, Any]) -> None:
    other = measured()
    other["phases"][-1]["seconds"] = [9.0] * 3
    assert scaling.make_document(other, FACTS)["predicted"] == document["predicted"]


def test_without_two_nodes_nothing_is_predicted() -> None:
    alone = measured()
    alone["phases"] = alone["phases"][:1]
    document = scaling.make_document(alone, FACTS)
    assert document["predicted"] == []
    assert document["ratio"]["seen"] == {}


def test_the_table_fits_a_terminal_and_names_the_quota(document: dict[str, Any]) -> None:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(scaling.table(document))
    lines = capture.get().splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert any("0.5 of each node, by a quota in periods of 100 ms" in line for line in lines)
    assert not any("busy" in line for line in lines)
    assert "…" not in capture.get()
    row = next(line for line in lines if line.split()[:2] == ["4", "ccl"])
    assert f"{document['predicted'][0]['efficiency']:.0%} (" in row


def test_a_busy_machine_is_reported() -> None:
    busy = measured()
    busy["phases"][3]["cpu_share"] = [0.3, 0.3, 0.3]
    console = Console(width=200)
    with console.capture() as capture:
        console.print(scaling.table(scaling.make_document(busy, FACTS)))
    assert "a node with 0.5 of a core got 0.30" in capture.get()


def test_the_picture_is_a_png(document: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "scaling.png"
    plots.scaling(document, file)
    data = file.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    assert width > height > 500


@pytest.mark.parametrize(
    ("cores", "nodes", "each", "limited"),
    [
        (2, 4, 0.5, True),
        (3, 4, 0.5, True),
        (4, 4, 1, False),
        (6, 4, 1, True),
        (64, 4, 16, False),
        (1, 4, 0.25, True),
    ],
)
def test_every_node_gets_the_same_number_of_cores(cores: int, nodes: int, each: float, limited: bool) -> None:
    assert (scaling.cores_of_each(cores, nodes), scaling.limited(cores, nodes)) == (each, limited)
    shares = divide([Core((cpu,), (cpu,)) for cpu in range(cores)], nodes)
    for core in range(cores):  # no core is assigned more than once
        users = [share for share in shares if any(core in each.cpus for each in share)]
        assert sum(min(each, len(share)) / len(share) for share in users) <= 1


def test_fractions_of_cores_become_a_cpu_quota() -> None:
    spec = ClusterSpec("test", "cpu-train-stack:2.13", 4, 1, ("bench", "scaling"), cpus=0.5)
    nodes = [service(node) for node in compose.containers(spec, CORES, Path("/keys")).values()]
    assert {(node["cpuset"], node["cpu_period"], node["cpu_quota"]) for node in nodes} == {
        ("0", CPU_PERIOD_US, CPU_PERIOD_US // 2),
        ("1", CPU_PERIOD_US, CPU_PERIOD_US // 2),
    }
    unlimited = ClusterSpec("test", "cpu-train-stack:2.13", 2, 1, ("bench", "scaling"))
    assert not any(
        "cpu_quota" in service(node) for node in compose.containers(unlimited, CORES, Path("/keys")).values()
    )


@pytest.mark.parametrize(
    ("nodes", "seconds", "cores"),
    [("", 10, 0), ("2,4", 10, 0), ("0,1", 10, 0), ("1,2", 0, 0), ("1,2", 10, -1), ("1,2", 10, 1e6)],
)
def test_options_that_cannot_be_compared_are_refused(nodes: str, seconds: float, cores: float) -> None:
    with pytest.raises(UsageError, match="expected"):
        scaling.run(scaling.ScalingOptions(Choice(), nodes=nodes, seconds=seconds, cores=cores))


def test_an_unknown_backend_is_refused_before_the_build() -> None:
    with pytest.raises(UsageError, match="--backend is 'nccl', expected ccl or gloo"):
        scaling.ScalingOptions(Choice(), backend=("ccl", "nccl"))
