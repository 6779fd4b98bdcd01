"""Entities and their F1 in cases computed by hand, and by CoNLL's rules."""

from __future__ import annotations

import pytest

from cpu_train_stack.train.scores import entities


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O O", set()),
        ("B-A I-A O B-B", {("A", 0, 2), ("B", 3, 4)}),
        ("B-A B-A I-A", {("A", 0, 1), ("A", 1, 3)}),
        ("I-A I-A O I-B", {("A", 0, 2), ("B", 3, 4)}),
        ("B-A I-B I-B", {("A", 0, 1), ("B", 1, 3)}),
        ("B-A I-A E-A S-B", {("A", 0, 3), ("B", 3, 4)}),
        ("B-A E-A E-A", {("A", 0, 2), ("A", 2, 3)}),
        ("B-A L-A U-B O", {("A", 0, 2), ("B", 2, 3)}),
        ("S-A I-A", {("A", 0, 1), ("A", 1, 2)}),
        ("B I O B", {("", 0, 2), ("", 3, 4)}),
        ("I-A", {("A", 0, 1)}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_entities_begin_and_end_as_in_conll(tags: str, expected: set[entities.Entity]) -> None:
    assert entities.found_in(tags.split()) == expected


def test_an_entity_is_correct_only_if_type_and_all_words_are() -> None:
    expected = [["B-A", "I-A", "O", "B-B"], ["B-A", "O"]]
    predicted = [["B-A", "O", "O", "B-B"], ["B-A", "O"]]
    found = entities.scores(predicted, expected)
    assert found == pytest.approx({"precision": 2 / 3, "recall": 2 / 3, "f1": 2 / 3})
    assert entities.scores(expected, expected)["f1"] == 1.0
    assert entities.scores([["O"]], [["O"]]) == {"precision": 0.0, "recall": 0.0, "f1": 0.0}


def test_each_type_has_scores_of_its_own() -> None:
    predicted, expected = [["B-PER", "O"], ["B-LOC", "B-LOC"]], [["B-PER", "O"], ["B-PER", "B-LOC"]]
    assert entities.scores_by_type(predicted, expected) == {
        "LOC": {"precision": 0.5, "recall": 1.0, "f1": pytest.approx(2 / 3), "number": 1},
        "PER": {"precision": 1.0, "recall": 0.5, "f1": pytest.approx(2 / 3), "number": 2},
    }


def test_parts_of_speech_are_no_entities() -> None:
    assert entities.are_entities(["O", "B-PER", "I-PER"])
    assert entities.are_entities(["O", "B", "I"])
    assert not entities.are_entities(["NOUN", "VERB"])
    assert not entities.are_entities(["O"])
    assert not entities.are_entities(["0", "1"])
