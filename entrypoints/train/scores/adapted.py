"""accuracy, F1, GLUE's and SQuAD's scores by their definitions. Pure but for scikit-learn and scipy.

SQuAD: the official evaluation of version 1.1 (rajpurkar.github.io/SQuAD-explorer, evaluate-v1.1.py), in which a
prediction without a word in common has F1 0, one that normalizes to nothing too. GLUE: table 1 of its paper.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Callable

from entrypoints.train.scores.squad import exact_match, normalize

GLUE = {
    "cola": ("matthews_correlation",),
    "stsb": ("pearson", "spearmanr"),
    "mrpc": ("accuracy", "f1"),
    "qqp": ("accuracy", "f1"),
    **dict.fromkeys(("sst2", "mnli", "mnli_mismatched", "mnli_matched", "qnli", "rte", "wnli"), ("accuracy",)),
    "hans": ("accuracy",),
}


def accuracy(predictions: Any, references: Any, normalize: bool = True, sample_weight: Any = None) -> float:
    """The share of equal labels, or their number where not `normalize`."""
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
    """The harmonic mean of precision and recall; one for each label where `average` is None."""
    from sklearn.metrics import f1_score

    score = f1_score(
        references, predictions, labels=labels, pos_label=pos_label, average=average, sample_weight=sample_weight
    )
    return float(score) if getattr(score, "size", 1) == 1 else score


def glue(task: str, predictions: Any, references: Any) -> dict[str, float]:
    """The scores of one of GLUE's tasks, by their names."""
    return {name: _GLUE_SCORES[name](predictions, references) for name in GLUE[task]}


def _matthews(predictions: Any, references: Any) -> float:
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(references, predictions))


def _pearson(predictions: Any, references: Any) -> float:
    from scipy.stats import pearsonr

    return float(pearsonr(predictions, references)[0])


def _spearman(predictions: Any, references: Any) -> float:
    from scipy.stats import spearmanr

    return float(spearmanr(predictions, references)[0])


_GLUE_SCORES: dict[str, Callable[[Any, Any], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "matthews_correlation": _matthews,
    "pearson": _pearson,
    "spearmanr": _spearman,
}


def squad(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> dict[str, float]:
    """Mean exact match and F1 over the questions, in percent. `answers`: those accepted, at least one each."""
    exact = sum(exact_match(prediction, accepted) for prediction, accepted in zip(predictions, answers))
    overlap = sum(
        max(_overlap(prediction, answer) for answer in accepted)
        for prediction, accepted in zip(predictions, answers)
    )
    return {"exact_match": 100.0 * exact / len(answers), "f1": 100.0 * overlap / len(answers)}


def _overlap(prediction: str, answer: str) -> float:
    predicted, expected = normalize(prediction).split(), normalize(answer).split()
    shared = sum((Counter(predicted) & Counter(expected)).values())
    if shared == 0:
        return 0.0
    precision, recall = shared / len(predicted), shared / len(expected)
    return 2 * precision * recall / (precision + recall)
