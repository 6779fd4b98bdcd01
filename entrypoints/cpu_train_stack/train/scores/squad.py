"""SQuAD's exact match and F1 as in its official evaluation, and the choice of an answer's span. Pure.

Definition: rajpurkar.github.io/SQuAD-explorer, evaluate-v1.1.py and, for questions without an answer,
evaluate-v2.0.py. They differ only if both texts are empty after normalization: then F1 is 0 in v1.1 and 1 in v2.0.
"""

from __future__ import annotations

import heapq
import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(text: str) -> str:
    """Lower case, without ASCII punctuation, articles and extra white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """1.0 if the prediction equals an accepted answer after normalization. No answers: "" is accepted."""
    return float(any(normalize(prediction) == normalize(answer) for answer in answers or [""]))


def f1(prediction: str, answers: Sequence[str], both_empty: float = 1.0) -> float:
    """The best overlap of words with an accepted answer, 0 to 1. No answers: "" is accepted."""
    return max(
        _f1(normalize(prediction).split(), normalize(answer).split(), both_empty) for answer in answers or [""]
    )


def _f1(predicted: list[str], expected: list[str], both_empty: float) -> float:
    if not predicted and not expected:
        return both_empty
    shared = sum((Counter(predicted) & Counter(expected)).values())
    if shared == 0:
        return 0.0
    precision, recall = shared / len(predicted), shared / len(expected)
    return 2 * precision * recall / (precision + recall)


def scores(
    predictions: Sequence[str], answers: Sequence[Sequence[str]], both_empty: float = 1.0
) -> dict[str, float]:
    """Mean exact match and F1 over all questions, in percent.

    `both_empty`: the F1 if prediction and answer are empty after normalization, 0.0 in version 1.1.
    """
    pairs = list(zip(predictions, answers))
    return {
        "exact_match": 100.0 * sum(exact_match(*pair) for pair in pairs) / len(pairs),
        "f1": 100.0 * sum(f1(*pair, both_empty) for pair in pairs) / len(pairs),
    }


def scores_v2(predictions: Any, references: Any, no_answer_threshold: float = 1.0) -> dict[str, Any]:
    """The official evaluation of SQuAD 2.0, with the best thresholds of "no answer"."""
    texts = {one["id"]: one["prediction_text"] for one in predictions}
    doubts = {one["id"]: one["no_answer_probability"] for one in predictions}
    answers = {one["id"]: [text for text in one["answers"]["text"] if normalize(text)] for one in references}
    has_answer = {one["id"]: bool(one["answers"]["text"]) for one in references}
    known = [key for key in answers if key in texts]
    raw = {
        "exact": {key: exact_match(texts[key], answers[key]) for key in known},
        "f1": {key: f1(texts[key], answers[key]) for key in known},
    }
    limited = {
        name: {key: float(not has_answer[key]) if doubts[key] > no_answer_threshold else score
               for key, score in found.items()}
        for name, found in raw.items()
    }  # fmt: skip
    groups = {"": known, "HasAns_": [key for key in known if has_answer[key]]}
    groups["NoAns_"] = [key for key in known if not has_answer[key]]
    result: dict[str, Any] = {}
    for prefix, keys in groups.items():
        if keys:
            for name, found in limited.items():
                result[prefix + name] = 100.0 * sum(found[key] for key in keys) / len(keys)
            result[f"{prefix}total"] = len(keys)
    for name, found in raw.items():
        best, threshold = _best_threshold(found, texts, doubts, has_answer)
        result.update({f"best_{name}": best, f"best_{name}_thresh": threshold})
    return result


def _best_threshold(scores: Any, texts: Any, doubts: Any, has_answer: Any) -> tuple[float, float]:
    """The best mean score, in percent, and the least probability of "no answer" above which it is taken."""
    current = best = float(sum(not one for one in has_answer.values()))
    threshold = 0.0
    for key in sorted((key for key in doubts if key in scores), key=doubts.__getitem__):
        current += scores[key] if has_answer[key] else -1 if texts[key] else 0
        if current > best:
            best, threshold = current, doubts[key]
    return 100.0 * best / len(scores), threshold


@dataclass(frozen=True)
class Window:
    """One window over a context. `offsets`: each token's characters in the context, None for other tokens.

    `start`, `end`: the model's scores of each token, at least as many as offsets.
    """

    offsets: Sequence[tuple[int, int] | None]
    start: Sequence[float]
    end: Sequence[float]


@dataclass(frozen=True)
class SpanOptions:
    """`no_answer_lead`: the lead at which "no answer" is chosen; None if every question has an answer."""

    n_best: int
    max_length: int
    no_answer_lead: float | None


def best_answer(context: str, windows: Sequence[Window], options: SpanOptions) -> str:
    """The text of the best span over all windows of one question; "" if there is none.

    Combines the n_best start tokens with the n_best end tokens of each window and takes the highest sum of
    scores. A span ends at or after its start, within the context, and has at most max_length tokens.
    """
    best_score, best_text = float("-inf"), ""
    no_answer = float("inf")
    for window in windows:
        tokens = range(len(window.offsets))
        no_answer = min(no_answer, window.start[0] + window.end[0])
        ends = [
            token
            for token in heapq.nlargest(options.n_best, tokens, key=window.end.__getitem__)
            if window.offsets[token] is not None
        ]
        for first in heapq.nlargest(options.n_best, tokens, key=window.start.__getitem__):
            begin = window.offsets[first]
            if begin is None:
                continue
            for last in ends:
                score = window.start[first] + window.end[last]
                finish = window.offsets[last]
                if finish and first <= last < first + options.max_length and score > best_score:
                    best_score, best_text = score, context[begin[0] : finish[1]]
    if options.no_answer_lead is not None and no_answer > best_score + options.no_answer_lead:
        return ""
    return best_text
