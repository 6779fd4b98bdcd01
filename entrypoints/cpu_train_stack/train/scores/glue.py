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


def f1_of_sets(chosen: Any, wanted: Any) -> dict[str, float]:
    """F1 over all decisions, and the mean of the classes' F1. `chosen`, `wanted`: bool arrays [rows, classes].

    scikit-learn takes one column for two classes, and counts the rows without the label as hits.
    """
    hits, named = (chosen & wanted).sum(axis=0), chosen.sum(axis=0) + wanted.sum(axis=0)
    return {
        "f1": float(2 * hits.sum() / max(named.sum(), 1)),
        "f1_macro": float((2 * hits / named.clip(1)).mean()),
    }


def scores(task: str, predictions: Any, references: Any) -> dict[str, float]:
    """The scores of a task of GLUE, by name."""
    from scipy import stats
    from sklearn.metrics import matthews_corrcoef

    functions: dict[str, Callable[[], Any]] = {
        "accuracy": lambda: accuracy(predictions, references),
        "f1": lambda: f1(predictions, references),
        "matthews_correlation": lambda: matthews_corrcoef(references, predictions),
        "pearson": lambda: stats.pearsonr(predictions, references)[0],
        "spearmanr": lambda: stats.spearmanr(predictions, references)[0],
    }
    return {name: float(functions[name]()) for name in TASKS[task]}
