"""`bench collectives` in one container: the document, under every launcher, and what it refuses."""

import json

import pytest

from tests import documents
from tests.containers import RunInImage
from tests.image.rank_scripts import usage_line

ROW = {
    "where",
    "backend",
    "collective",
    "dtype",
    "bytes",
    "ranks",
    "latency_us",
    "algbw_gbytes_per_s",
    "ceiling_share",
}
LITTLE = ("--sizes", "4K,16M", "--seconds", "0.1")


def test_two_ranks_print_one_document_with_both_backends_and_the_ceiling(run_in_image: RunInImage) -> None:
    command = ("launch", "--nproc-per-node", "2", "--", "bench", "collectives", "--json", *LITTLE)
    collectives = ("--collectives", "all_reduce,broadcast,all_gather,reduce_scatter", "--dtypes", "bfloat16")
    done = run_in_image(*command, *collectives, docker_args=("--shm-size", "1g"))
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert documents.missing("bench-collectives", document) == []
    assert [(row["collective"], row["bytes"], row["backend"]) for row in document["rows"]] == [
        (collective, size, backend)
        for collective in ("all_reduce", "broadcast", "all_gather", "reduce_scatter")
        for size in (4 << 10, 16 << 20)
        for backend in ("ccl", "gloo")
    ]
    for row in document["rows"]:
        assert row.keys() >= ROW
        assert (row["where"], row["dtype"], row["ranks"]) == ("one-container", "bfloat16", 2)
        low, high = row["latency_us_quartiles"]
        assert 0 < low <= row["latency_us"] <= high
        assert row["algbw_gbytes_per_s"] == pytest.approx(row["bytes"] / row["latency_us"] / 1e3, rel=0.01)
        assert (row["ceiling_share"] is not None) == (row["bytes"] >= 16 << 20)
    (ceiling,) = document["ceilings"]
    assert (ceiling["where"], ceiling["what"], ceiling["bytes"]) == ("one-container", "memory-copy", 16 << 20)
    assert ceiling["gbytes_per_s"] > 0
    assert document["environment"]["FI_PROVIDER"] == "tcp,shm"


def test_a_rank_alone_and_ranks_of_mpirun_print_a_table(run_in_image: RunInImage) -> None:
    for launcher in ((), ("mpirun", "-n", "2", "entrypoint")):
        command = (*launcher, "bench", "collectives", "--backend", "gloo", "--dtypes", "float32", *LITTLE)
        done = run_in_image(*command, docker_args=("--shm-size", "1g"))
        assert done.returncode == 0, done.stderr
        head, first, second, ceiling = done.stdout.splitlines()
        assert head.split()[:2] == ["collective", "type"]
        assert first.split()[:5] == ["all_reduce", "float32", "4", "KiB", "gloo"]
        assert second.endswith("%") == bool(launcher)  # one rank moves nothing: nothing limits it
        assert ceiling.startswith("ceiling memory-copy of 16 MiB: ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("colectives",), "invalid choice: 'colectives'"),
        (("collectives", "--sizes", "4X"), "'4X' is not a size: expected bytes, 64K or 25M"),
        (("collectives", "--output", "/none/x.json"), "--output /none/x.json, expected a file in a folder"),
    ],
    ids=["measurement", "size", "output"],
)
def test_a_wrong_argument_is_one_line(run_in_image: RunInImage, arguments: tuple[str, ...], said: str) -> None:
    assert said in usage_line(run_in_image("bench", *arguments))


def test_more_nodes_than_the_job_has_cannot_be_scaled_to(run_in_image: RunInImage) -> None:
    error = usage_line(run_in_image("bench", "scaling", "--nodes", "1,3"))
    assert "--nodes has 3, but the job has only 1" in error
