"""`--load_best_model_at_end` on two ranks: all of them end with the weights of the best checkpoint."""

import json
from pathlib import Path

import pytest

from tests.containers import RunInImage
from tests.image.container_scripts import MOUNT
from tests.image.train_runs import line, result, run_alone


def test_every_rank_ends_with_the_best_checkpoint_where_it_is_not_the_last(run_in_image: RunInImage) -> None:
    """With gloo: test_train_fields.py."""
    command = ("launch", "--nproc-per-node=2", "--", "run", "/s/best.py")
    done = run_in_image(*command, docker_args=MOUNT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "by_score checkpoint-2 5 2,5 best alike",
        "by_the_opposite checkpoint-4 5 4 best alike",
        "stopped_early checkpoint-2 3 2,3 best alike",
        "adapter checkpoint-2 5 2,5 best alike",
        "sharded checkpoint-2 5 2,5 best alike",
        "folders_of_their_own checkpoint-2 5 2,5 best alike",
        "sharded_adapter checkpoint-2 5 2,5 best alike",
        "ended checkpoint-2 5 1,2,3,4,5 best alike",
        "resumed_at_the_end checkpoint-2 5 1,2,3,4,5 best alike",
        "moved checkpoint-2 5 2,5 best alike",
        "asked_to_stop checkpoint-1 3 1,3 others alike",
        "asked_to_stop: the checkpoint has 3 losses",
    ]


def test_the_least_perplexity_is_the_best_unless_the_user_says_otherwise(
    image: str, train_data: Path, output_folder: Path
) -> None:
    worse = {
        "task": "fill-mask",
        "learning_rate": 0.5,
        "metric_for_best_model": "perplexity",
        "lr_scheduler_type": "reduce_lr_on_plateau",
        "num_train_epochs": 3,
    }
    common = {**worse, "load_best_model_at_end": True, "save_strategy": None, "text_column_names": "text"}
    lines = {
        "least": line("/output/least", **common),
        "most": line("/output/most", **common, greater_is_better="true"),
    }
    runs = run_alone(image, train_data, output_folder, lines)
    assert [run["code"] for run in runs.values()] == [0, 0], runs
    assert result(output_folder / "most")["config"]["lr_scheduler_kwargs"] == {"mode": "max"}
    assert not result(output_folder / "least")["config"]["lr_scheduler_kwargs"]  # torch's default is "min"
    for name, choose in (("least", min), ("most", max)):
        last = max((output_folder / name).glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
        history = json.loads((last / "trainer_state.json").read_text())["log_history"]
        found = [entry["eval_perplexity"] for entry in history if "eval_perplexity" in entry]
        assert min(found) < max(found)
        assert result(output_folder / name)["metric_after"] == pytest.approx(choose(found), rel=1e-3)
