"""Scores of generated texts: exact match, and ROUGE and BLEU where their packages are installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cpu_train_stack.cli import packages

# What computes each score. rouge_score 0.0.4, the newest wheel on PyPI, takes no tokenizer.
PACKAGES = {"rouge": "rouge_score>=0.1.2", "sacrebleu": "sacrebleu"}
_ROUGE = ("rouge1", "rouge2", "rougeL")


def can(score: str) -> bool:
    """Whether its package is installed, in a release that is new enough."""
    name, _, least = PACKAGES[score].partition(">=")
    found = packages.versions([name]).get(name)
    return packages.installed(name) and packages.release(found) >= packages.release(least)


def headline() -> str:
    """The name of the score that result.json reports as the metric: the best one that can be computed."""
    if can("rouge"):
        return "rougeL"
    return "bleu" if can("sacrebleu") else "exact_match"


def missing() -> str | None:
    """A note about the packages that are missing, if only exact match can be computed."""
    if headline() != "exact_match":
        return None
    return (
        f"generated texts are scored by exact match only: ROUGE needs the package {PACKAGES['rouge']}, BLEU "
        f"{PACKAGES['sacrebleu']}, which ./inv build --with 'PACKAGE' adds"
    )


def scores(written: Sequence[str], expected: Sequence[str]) -> dict[str, float]:
    """The mean scores of all texts, in percent."""
    found = {"exact_match": 100.0 * sum(map(str.__eq__, written, expected)) / len(expected)}
    if can("rouge"):
        each = rouge(written, expected, _ROUGE, use_stemmer=True)
        found.update({name: 100.0 * sum(values) / len(values) for name, values in each.items()})
    if can("sacrebleu"):
        found["bleu"] = float(bleu(written, [[text] for text in expected]).score)
    return found


def rouge(
    written: Sequence[str], expected: Sequence[Any], types: Sequence[str], use_stemmer: bool, tokenizer: Any = None
) -> dict[str, list[float]]:
    """The F-measure of each text, by type. `expected`: a text, or several accepted texts, for each."""
    from rouge_score import rouge_scorer

    scorer = rouge_scorer.RougeScorer(list(types), use_stemmer=use_stemmer, tokenizer=tokenizer)
    each = [
        scorer.score(right, text) if isinstance(right, str) else scorer.score_multi(right, text)
        for text, right in zip(written, expected)
    ]
    return {name: [score[name].fmeasure for score in each] for name in types}


def bleu(written: Sequence[str], expected: Sequence[Sequence[str]], **options: Any) -> Any:
    """sacrebleu's BLEU of all texts. `expected`: the accepted texts of each, as many for every text."""
    from sacrebleu import corpus_bleu

    return corpus_bleu(list(written), [list(column) for column in zip(*expected)], **options)
