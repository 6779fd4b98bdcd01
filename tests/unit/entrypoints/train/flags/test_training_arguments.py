"""What `train` adds to the flags before transformers sees them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.flags import training_arguments


@pytest.mark.parametrize("metric", ["loss", "eval_loss", "perplexity", "eval_perplexity", "mae", "eval_mae"])
def test_the_least_value_of_an_error_is_the_best(metric: str) -> None:
    assert not training_arguments.is_better_if_greater(metric)


@pytest.mark.parametrize("metric", ["accuracy", "eval_f1", "f1_macro", "pearson", "exact_match", "rougeL", "bleu"])
def test_the_greatest_value_of_a_score_is_the_best(metric: str) -> None:
    assert training_arguments.is_better_if_greater(metric)


def test_access_tokens_are_not_stored() -> None:
    stored = training_arguments.without_tokens(SimpleNamespace(hub_token=1, seed=3))
    assert stored == {"hub_token": None, "seed": 3}


def test_a_schedule_gets_its_options_from_every_version_of_transformers() -> None:
    def inverse_sqrt(warmup_steps: int, timescale: int = 10_000) -> tuple[int, int]:
        return warmup_steps, timescale

    schedules = {"inverse_sqrt": inverse_sqrt}
    training_arguments.bind_options(schedules, "inverse_sqrt", {"timescale": 5})
    assert schedules["inverse_sqrt"](1) == (1, 5)  # before 4.56
    assert schedules["inverse_sqrt"](1, timescale=5) == (1, 5)


def values(**changes: Any) -> dict[str, Any]:
    """transformers' fields, with the defaults of `train`."""
    fields = {"load_best_model_at_end": True, "eval_strategy": "epoch", "eval_steps": None, "logging_steps": 10}
    return {**fields, "save_strategy": "steps", "save_steps": 500, **changes}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ("epoch", 10)),
        ({"eval_strategy": "steps", "eval_steps": 50}, ("steps", 50)),
        ({"eval_strategy": "steps", "eval_steps": 50, "save_steps": 200}, ("steps", 200)),
        ({"save_steps": 200}, ("steps", 200)),  # transformers refuses it: the strategies differ
        ({"save_strategy": "best"}, ("best", 500)),
        ({"load_best_model_at_end": False, "eval_strategy": "no"}, ("steps", 500)),
    ],
    ids=str,
)
def test_checkpoints_follow_the_evaluations_unless_flags_say_when_to_save(
    changes: dict[str, Any], expected: tuple[str, int]
) -> None:
    found = values(**changes)
    training_arguments.follow_evaluations(found, changes)
    assert (found["save_strategy"], found["save_steps"]) == expected


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "load_best_model_at_end"),
        ({"save_strategy": "no"}, "load_best_model_at_end"),
        ({"save_strategy": "best", "load_best_model_at_end": False}, "save_strategy best"),
    ],
    ids=str,
)
def test_a_best_model_needs_evaluations(changes: dict[str, Any], name: str) -> None:
    with pytest.raises(UsageError, match=f"--{name} needs evaluations during training: pass --validation_file"):
        training_arguments.follow_evaluations(values(eval_strategy="no", **changes), changes)


def test_an_unknown_metric_is_refused_with_those_of_the_evaluation() -> None:
    metrics = {"eval_loss": 1.0, "eval_f1": 0.5, "epoch": 1.0}
    for name in (None, "f1", "eval_f1", "loss"):
        training_arguments.check_metric(name, metrics)
    for name in ("auc", "epoch"):  # Trainer adds the epoch, which is no metric, to the metrics
        message = f"--metric_for_best_model '{name}' is unknown, expected one of: f1, loss"
        with pytest.raises(UsageError, match=message):
            training_arguments.check_metric(name, metrics)
