"""What ranks of the launchers in the image would get: their place, and cores of their own."""

from __future__ import annotations

import json

import pytest

from tests.containers import RunInImage

# Each rank writes a file of its own: launchers may mix the lines of ranks that print at the same time.
PLAN = "entrypoint plan --json >/tmp/plan-"
SHOW = "printf '['; cat /tmp/plan-0; printf ','; cat /tmp/plan-1; printf ']'"


@pytest.mark.parametrize(
    ("start", "rank", "launcher"),
    [
        ("mpirun -n 2", "$PMI_RANK", "hydra"),
        ("torchrun --nproc-per-node 2 --no-python", "$RANK", "torchrun"),
        ("entrypoint launch --nproc-per-node 2 --", "$RANK", "torchrun"),
    ],
    ids=["Intel MPI", "torchrun", "launch"],
)
def test_each_rank_is_placed_and_has_cores_of_its_own(
    run_in_image: RunInImage, start: str, rank: str, launcher: str
) -> None:
    done = run_in_image("sh", "-c", f"{start} sh -c '{PLAN}{rank}' && {SHOW}")
    assert done.returncode == 0, done
    plans = json.loads(done.stdout)
    places = [(plan["rank"], plan["world_size"], plan["local_rank"], plan["local_world_size"]) for plan in plans]
    assert places == [(0, 2, 0, 2), (1, 2, 1, 2)]
    assert {(plan["launcher"], plan["node_rank"]) for plan in plans} == {(launcher, 0)}
    first, second = (set(plan["cores"]) for plan in plans)
    if len(first | second) > 1:
        assert not first & second
    for plan in plans:
        assert 1 <= plan["omp_num_threads"] <= len(plan["cores"])


def test_a_rank_whose_launcher_tells_no_place_is_refused_in_one_line(run_in_image: RunInImage) -> None:
    done = run_in_image("env", "ALPS_APP_PE=1", "entrypoint", "train", "--output_dir", "/tmp/output")
    assert done.returncode == 2, done
    assert done.stderr.startswith("error: found ALPS_APP_PE=1, but aprun does not say how many ranks there are")
    assert done.stderr.count("\n") == 1


def test_a_process_that_no_launcher_started_is_one_rank(run_in_image: RunInImage) -> None:
    (plan,) = json.loads(run_in_image("sh", "-c", "printf '['; entrypoint plan --json; printf ']'").stdout)
    assert (plan["launcher"], plan["world_size"], plan["local_world_size"]) == ("single", 1, 1)
