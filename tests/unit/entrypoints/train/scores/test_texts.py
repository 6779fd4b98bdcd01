"""Scores of generated texts, and what is printed where a package is missing."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cpu_train_stack.cli import packages
from cpu_train_stack.train.scores import texts


def have(monkeypatch: pytest.MonkeyPatch, *names: str, version: str = "0.1.2") -> None:
    monkeypatch.setattr(packages, "installed", lambda name: name in names)
    monkeypatch.setattr(packages, "versions", lambda wanted: {name: version for name in wanted if name in names})


def test_exact_match_needs_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch)
    assert texts.scores(["a", "b", "C", ""], ["a", "x", "c", ""]) == {"exact_match": 50.0}
    assert texts.headline() == "exact_match"
    assert texts.missing() == (
        "generated texts are scored by exact match only: ROUGE needs the package rouge_score>=0.1.2, BLEU "
        "sacrebleu, which ./inv build --with 'PACKAGE' adds"
    )


@pytest.mark.parametrize(
    ("installed", "expected"),
    [(("rouge_score", "sacrebleu"), "rougeL"), (("rouge_score",), "rougeL"), (("sacrebleu",), "bleu")],
)
def test_an_installed_package_gives_the_metric(
    monkeypatch: pytest.MonkeyPatch, installed: tuple[str, ...], expected: str
) -> None:
    have(monkeypatch, *installed)
    assert (texts.headline(), texts.missing()) == (expected, None)


def test_an_old_rouge_score_counts_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, "rouge_score", version="0.0.4")
    assert texts.headline() == "exact_match"
    assert texts.scores(["a"], ["a"]) == {"exact_match": 100.0}
    have(monkeypatch, "rouge_score", "sacrebleu", version="0.0.4")
    assert texts.headline() == "bleu"


def test_bleu_gets_the_accepted_texts_by_column(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    module: Any = ModuleType("sacrebleu")

    def corpus_bleu(*given: Any) -> SimpleNamespace:
        calls.append(given)
        return SimpleNamespace(score=12.5)

    module.corpus_bleu = corpus_bleu
    monkeypatch.setitem(sys.modules, "sacrebleu", module)
    texts.bleu(["a", "b"], [["c", "d"], ["e", "f"]])
    assert calls == [(["a", "b"], [["c", "e"], ["d", "f"]])]
    have(monkeypatch, "sacrebleu")
    assert texts.scores(["a"], ["a"]) == {"exact_match": 100.0, "bleu": 12.5}
