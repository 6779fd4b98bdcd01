"""What `train` adds to the flags before transformers sees them."""

from __future__ import annotations

import pytest

from entrypoints.train.flags import training_arguments


@pytest.mark.parametrize("metric", ["loss", "eval_loss", "perplexity", "eval_perplexity", "mae", "eval_mae"])
def test_the_least_value_of_an_error_is_the_best(metric: str) -> None:
    assert not training_arguments.is_better_if_greater(metric)


@pytest.mark.parametrize("metric", ["accuracy", "eval_f1", "f1_macro", "pearson", "exact_match", "rougeL", "bleu"])
def test_the_greatest_value_of_a_score_is_the_best(metric: str) -> None:
    assert training_arguments.is_better_if_greater(metric)
