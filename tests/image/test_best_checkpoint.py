"""`--load_best_model_at_end` on two ranks: all of them end with the weights of the best checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.containers import RunInImage

SCRIPTS = Path(__file__).with_name("scripts")


@pytest.mark.parametrize("backend", ["ccl", "gloo"])
def test_every_rank_ends_with_the_best_checkpoint_where_it_is_not_the_last(
    run_in_image: RunInImage, backend: str
) -> None:
    command = ("launch", "--nproc-per-node=2", "--", "run", "--backend", backend, "/s/best.py")
    done = run_in_image(*command, docker_args=("--volume", f"{SCRIPTS}:/s:ro"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "by_score checkpoint-2 5 2,5 best alike",
        "by_the_opposite checkpoint-4 5 4 best alike",
        "stopped_early checkpoint-2 3 2,3 best alike",
        "adapter checkpoint-2 5 2,5 best alike",
        "sharded checkpoint-2 5 2,5 best alike",
        "folders_of_their_own checkpoint-2 5 2,5 best alike",
        "ended checkpoint-2 5 1,2,3,4,5 best alike",
        "resumed_at_the_end checkpoint-2 5 1,2,3,4,5 best alike",
        "moved checkpoint-2 5 2,5 best alike",
        "asked_to_stop checkpoint-1 3 1,3 others alike",
        "asked_to_stop: the checkpoint has 3 losses",
    ]
