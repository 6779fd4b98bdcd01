"""`run` with scripts for transformers 4: Trainer's methods and names, and the fields of its arguments."""

import json
import re
import subprocess
from pathlib import Path

from tests.containers import RunInImage

HERE = Path(__file__).parent
TWO = ("launch", "--nproc-per-node", "2", "--", "run", "--quiet", "--timeout", "60")


def run(run_in_image: RunInImage, *argv: str) -> subprocess.CompletedProcess[str]:
    mount = ("--network", "none", "--shm-size", "1g", "--volume", f"{HERE / 'scripts'}:/scripts:ro")
    return run_in_image(*argv, docker_args=mount)


def test_a_trainer_and_a_callback_of_transformers_4_train_on_two_ranks(run_in_image: RunInImage) -> None:
    done = run(run_in_image, *TWO, "/scripts/old_trainer.py")
    assert done.returncode == 0, done.stderr
    ranks = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"rank"')]
    assert sorted(rank["rank"] for rank in ranks) == [0, 1]
    for rank in ranks:
        assert rank["local_rank"] == rank["rank"]
        assert rank["gathered"] == [0, 1]
        calls = rank["calls"]
        assert calls.pop("compute_loss") == 5  # four batches of training and one of evaluation
        assert calls.pop("training_step") == 4
        # The callback gets the tokenizer after each step, and after the epoch.
        assert (calls.pop("tokenizer"), calls.pop("kwargs")) == (2, 1)
        assert set(calls) == {
            *("_get_train_sampler", "log", "save_model", "create_optimizer", "create_scheduler", "_wrap_model"),
            *("_save_checkpoint", "_maybe_log_save_evaluate", "get_optimizer_cls_and_kwargs"),
        }
        assert rank["loss"] < 0.8  # neither times the ranks nor times the accumulation steps
        assert rank["checkpoints"] == ["checkpoint-2"]
        assert rank["rows"] == 16
        assert rank["same"]
        assert rank["parameters"]
        assert rank["rates"]
    names = set(re.findall(r"adapted \(([\w-]+)\): ", done.stderr))
    assert {"trainer-methods", "trainer-tokenizer", "trainer-names"} <= names


def test_rarer_overrides_and_calls_of_transformers_4_work(run_in_image: RunInImage) -> None:
    """Decorators without functools.wraps, partial methods, collators, smoothers, and names of attributes."""
    done = run(run_in_image, "run", "--quiet", "/scripts/old_overrides.py")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "losses": {"decorated": [0.7, 0.7], "partial": [1.4, 1.4], "extra": [0.7, 0.7], "smoothed": [0.7, 0.7]},
        "masked": [2, 2],
        "calls": {
            **dict.fromkeys(("compute_loss", "training_step", "get_batch_samples", "__call__"), 2),
            "torch_mask_tokens": 1,
            "log": 6,
        },
        "step": True,
        "rows": 8,
        "handler": True,
        "tokens": 48,
        "optimizer": "adamw_torch",
        "score": {"f1": 1.0},
    }


def test_every_field_of_transformers_4_is_accepted_with_a_note_or_refused(run_in_image: RunInImage) -> None:
    """The fields are recorded from 52 releases, by record_fields.py."""
    done = run(run_in_image, "run", "--quiet", "/scripts/old_fields.py")
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1] == (
        "error: --sharded_ddp simple: fairscale's sharding was removed: use --fsdp full_shard"
    )
    seen = json.loads(done.stdout)
    assert seen["count"] >= 35
    assert seen["wrong"] == {}
    assert seen["called"] == [
        *("adamw_torch", "organization/model", "token"),
        {"transformer_layer_cls_to_wrap": ["Layer"], "min_num_params": 3},
        *([False, True], [False, ["loss", "inputs"]], "all"),
    ]
    assert seen["parsed"] == ["adamw_torch", "organization/folder", False, True, ["inputs"], True, "epoch"]
    assert seen["subclass"] == [
        *("epoch", False, [], True, 2),
        *("steps", "group_by_length", 0.03),
        *("epoch", 0),
    ]
    assert seen["replaced"] == ["no", 3, 100, 2, False]
    assert seen["assigned"] == [["group_by_length", 5], "random", 2, "steps", 16, False]
    assert seen["warmups"] == {
        "replaced": 500,
        "assigned": 500,
        "assigned again": 250,
        "assigned 0": 0,
        "method": 100,
        "method, both": 30,
        "method, in order": 200,
        "method, new": 300,
    }
    notes = re.findall(r"^adapted \(([\w-]+)\): --", done.stderr, re.MULTILINE)
    assert "optim" in notes  # the script has checked those of the removed fields


def test_an_iterable_data_set_with_rows_of_different_lengths_gives_each_rank_its_own(
    run_in_image: RunInImage,
) -> None:
    done = run(run_in_image, *TWO, "/scripts/ragged_batches.py")
    assert done.returncode == 0, done.stderr
    ranks = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"rank"')]
    batches = {rank["rank"]: rank["batches"] for rank in ranks}
    # Batches go to the ranks in turn, as the collator made them.
    assert [batch["labels"] for batch in batches[0]] == [[0, 1], [4, 5], [8, 9]]
    assert [batch["labels"] for batch in batches[1]] == [[2, 3], [6, 7], [10, 0]]  # the last step is filled up
    assert batches[0][1]["input_ids"] == [[4, 4, 4, 4], [5, 0, 0, 0]]
    assert batches[1][0]["input_ids"] == [[2, 2, 2, 2, 2], [3, 3, 0, 0, 0]]
    assert batches[1][0]["attention_mask"] == [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]
