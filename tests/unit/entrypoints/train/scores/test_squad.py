"""Exact match and F1 in cases computed by hand from SQuAD's official definition."""

from __future__ import annotations

import pytest

from cpu_train_stack.train.scores.squad import SpanOptions, Window, best_answer, exact_match, f1, normalize, scores


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Cat", "cat"),
        ("a cat, an owl; THE dog!", "cat owl dog"),
        ("theatre another", "theatre another"),
        ("U.S.A.", "usa"),
        ("  \t\n", ""),
        ("the", ""),
        ("“quoted”", "“quoted”"),
        ("well-known", "wellknown"),
    ],
    ids=["case", "articles", "inside-words", "dots", "blank", "only-article", "unicode-quotes", "hyphen"],
)
def test_normalization_drops_case_punctuation_articles_and_blanks(text: str, expected: str) -> None:
    assert normalize(text) == expected


@pytest.mark.parametrize(
    ("prediction", "answers", "match", "overlap"),
    [
        ("the Eiffel Tower", ["Eiffel Tower"], 1.0, 1.0),
        ("Eiffel", ["Eiffel Tower"], 0.0, 2 / 3),
        ("in the year 1990", ["1990"], 0.0, 0.5),
        ("1990", ["1889", "1990."], 1.0, 1.0),
        ("Paris", ["Rome"], 0.0, 0.0),
        ("", ["Rome"], 0.0, 0.0),
        ("the", ["Rome"], 0.0, 0.0),
        ("", [], 1.0, 1.0),
        ("Rome", [], 0.0, 0.0),
        ("the", ["a"], 1.0, 1.0),
        ("to be to be", ["to be"], 0.0, 2 / 3),
    ],
    ids=[
        "article",
        "part",
        "longer",
        "best-of-several",
        "wrong",
        "empty-prediction",
        "prediction-empties",
        "no-answer-found",
        "no-answer-missed",
        "both-empty",
        "repeated-words-count-once-each",
    ],
)
def test_a_prediction_gets_the_official_scores(
    prediction: str, answers: list[str], match: float, overlap: float
) -> None:
    assert exact_match(prediction, answers) == match
    assert f1(prediction, answers) == pytest.approx(overlap)


@pytest.mark.parametrize(
    ("prediction", "answers", "exact", "overlap"),
    [
        ("the cat", ["Cat!"], 100.0, 100.0),
        ("a black cat", ["cat", "dog"], 0.0, 200 / 3),
        ("", ["cat"], 0.0, 0.0),
        ("the", ["a"], 100.0, 0.0),
    ],
    ids=["normalized", "best of several", "nothing", "only articles, as in version 1.1"],
)
def test_scores_of_version_1_1(prediction: str, answers: list[str], exact: float, overlap: float) -> None:
    found = scores([prediction], [answers], both_empty=0.0)
    assert found == pytest.approx({"exact_match": exact, "f1": overlap})


def test_scores_are_means_over_questions_in_percent() -> None:
    found = scores(["Rome", "Eiffel"], [["Rome"], ["Eiffel Tower"]])
    assert found == {"exact_match": 50.0, "f1": pytest.approx(100 * (1 + 2 / 3) / 2)}


CONTEXT = "tom lives in paris"
# [CLS] question [SEP] tom lives in paris: the first three tokens are not in the context.
OFFSETS = [None, None, None, (0, 3), (4, 9), (10, 12), (13, 18)]
ALWAYS = SpanOptions(n_best=20, max_length=30, no_answer_lead=None)


def window(start: dict[int, float], end: dict[int, float]) -> Window:
    scores_of = [[given.get(token, -5.0) for token in range(len(OFFSETS))] for given in (start, end)]
    return Window(OFFSETS, *scores_of)


def test_the_best_span_is_cut_out_of_the_context() -> None:
    assert best_answer(CONTEXT, [window({5: 3.0}, {6: 3.0})], ALWAYS) == "in paris"


def test_a_span_never_ends_before_its_start_nor_outside_of_the_context() -> None:
    assert best_answer(CONTEXT, [window({6: 3.0, 1: 9.0}, {3: 2.0, 6: 1.0, 2: 9.0})], ALWAYS) == "paris"


def test_a_span_longer_than_allowed_is_not_chosen() -> None:
    options = SpanOptions(n_best=20, max_length=1, no_answer_lead=None)
    assert best_answer(CONTEXT, [window({3: 5.0, 6: 1.0}, {6: 5.0, 3: 1.0})], options) in ("tom", "paris")


def test_only_the_n_best_tokens_are_combined() -> None:
    options = SpanOptions(n_best=1, max_length=30, no_answer_lead=None)
    assert best_answer(CONTEXT, [window({6: 3.0, 3: 2.0}, {3: 3.0, 6: 2.0})], options) == ""


def test_the_best_window_of_a_long_context_wins() -> None:
    windows = [window({3: 1.0}, {3: 1.0}), window({6: 2.0}, {6: 2.0})]
    assert best_answer(CONTEXT, windows, ALWAYS) == "paris"


def test_no_answer_is_chosen_only_if_it_leads_in_every_window() -> None:
    options = SpanOptions(n_best=20, max_length=30, no_answer_lead=0.0)
    nothing, paris = window({0: 5.0}, {0: 5.0}), window({6: 2.0}, {6: 2.0})
    assert best_answer(CONTEXT, [nothing], options) == ""
    assert best_answer(CONTEXT, [nothing, paris], options) == "paris"
    assert best_answer(CONTEXT, [nothing], SpanOptions(20, 30, no_answer_lead=50.0)) != ""
    assert best_answer(CONTEXT, [nothing], ALWAYS) != ""
