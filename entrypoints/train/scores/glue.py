"""Accuracy, F1 and the scores of GLUE's tasks (table 1 of its paper), with scikit-learn and scipy."""

from __future__ import annotations

from typing import Any, Callable

TASKS = {
    "cola": ("matthews_correlation",),
    "stsb": ("pearson", "spearmanr"),
    "mrpc": ("accuracy", "f1"),
    "qqp": ("accuracy", "f1"),
    **dict.fromkeys(("sst2", "mnli", "mnli_mismatched", "mnli_matched", "qnli", "rte", "wnli"), ("accuracy",)),
    "hans": ("accuracy",),
}


def accuracy(predictions: Any, references: Any, normalize: bool = True, sample_weight: Any = None) -> float:
    """The share of correct labels, or their number if not `normalize`."""
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(references, predictions, normalize=normalize, sample_weight=sample_weight))


def f1(
    predictions: Any,
    references: Any,
    labels: Any = None,
    pos_label: Any = 1,
    average: str | None = "binary",
    sample_weight: Any = None,
) -> Any:
    """The harmonic mean of precision and recall; an array [labels] if `average` is None."""
    from sklearn.metrics import f1_score

    score = f1_score(
        references, predictions, labels=labels, pos_label=pos_label, average=average, sample_weight=sample_weight
    )
    return float(score) if getattr(score, "size", 1) == 1 else score


def scores(task: str, predictions: Any, references: Any) -> dict[str, float]:
    """The scores of a task of GLUE, by name."""
    return {name: _SCORES[name](predictions, references) for name in TASKS[task]}


def _matthews(predictions: Any, references: Any) -> float:
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(references, predictions))


def _pearson(predictions: Any, references: Any) -> float:
    from scipy.stats import pearsonr

    return float(pearsonr(predictions, references)[0])


def _spearman(predictions: Any, references: Any) -> float:
    from scipy.stats import spearmanr

    return float(spearmanr(predictions, references)[0])


_SCORES: dict[str, Callable[[Any, Any], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "matthews_correlation": _matthews,
    "pearson": _pearson,
    "spearmanr": _spearman,
}
