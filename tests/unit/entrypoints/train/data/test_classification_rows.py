"""Columns with texts, labels, questions and answers, and the errors for bad columns and rows."""

from __future__ import annotations

from typing import Any

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.data import classification_rows, labels
from cpu_train_stack.train.data.tables import DataTable, parse_text_columns


def table(**content: list[Any]) -> DataTable:
    return DataTable("x.csv", content)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"label": ["1"], "sentence2": ["b"], "text": ["c"], "sentence1": ["a"]}, ("sentence1", "sentence2")),
        ({"text": ["a"], "label": ["1"]}, ("text",)),
        ({"label": ["1"], "title": ["a"], "body": ["b"], "extra": ["c"]}, ("title", "body")),
        ({"idx": ["x1"], "text": ["a"], "label": ["1"]}, ("text",)),
        ({"score": ["0.5"], "text": ["a"], "label": ["1"]}, ("text",)),
        ({"count": [3], "text": ["a"], "label": ["1"]}, ("text",)),
    ],
    ids=["glue-pair", "single", "first-two", "not-row-names", "not-numbers-in-csv", "not-numbers-in-json"],
)
def test_text_columns_follow_run_glue(content: dict[str, list[Any]], expected: tuple[str, ...]) -> None:
    assert classification_rows.labelled_texts(table(**content), "label", None).text_columns == expected


def test_labels_may_be_texts_or_integers_and_become_names() -> None:
    data = classification_rows.labelled_texts(table(text=["a", "b", "c"], label=[1, "x", 2.0]), "label", None)
    assert data.labels == ["1", "x", "2"]


def test_a_name_that_looks_like_a_number_is_a_class_among_other_names() -> None:
    data = classification_rows.labelled_texts(
        table(text=["a", "b", "c"], label=["2.7", "3.1", "none"]), "label", None
    )
    assert data.labels == ["2.7", "3.1", "none"]


def test_the_order_of_a_data_sets_classes_is_kept() -> None:
    mrpc = ["not_equivalent", "equivalent"]
    assert classification_rows.in_order(["equivalent", "not_equivalent"], mrpc) == mrpc
    assert (
        classification_rows.in_order(["equivalent"], mrpc) == mrpc
    )  # with labels that the first rows do not have
    assert classification_rows.in_order(["neg", "pos"], []) == ["neg", "pos"]
    assert classification_rows.in_order(["neg", "pos"], mrpc) == ["neg", "pos"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"text": ["a"]}, "no column 'label'"),
        ({"label": ["1"], "score": ["2"]}, "no column of text besides 'label'"),
        ({"text": ["a", " "], "label": ["1", "0"]}, "1 of 2 rows have no text in column 'text', first in row 2"),
        ({"text": ["a", None], "label": ["1", "0"]}, "first in row 2"),
        ({"text": ["a", 7], "label": ["1", "0"]}, "row 2: column 'text' holds int 7"),
        ({"text": ["a", "b"], "label": ["1", ""]}, "row 2: column 'label' holds ''"),
        ({"text": ["a", "b"], "label": [None, "1"]}, "row 1: column 'label' holds None"),
        ({"text": ["a", "b"], "label": ["1", "nan"]}, "row 2: column 'label' holds 'nan'"),
        ({"text": ["a", "b"], "label": [["x"], "y"]}, "row 2: column 'label' holds 'y', expected a list"),
        ({"text": ["a"], "label": [{"x": 1}]}, "expected a label"),
    ],
)
def test_a_bad_row_is_refused_with_its_number(content: dict[str, list[Any]], expected: str) -> None:
    with pytest.raises(UsageError) as raised:
        classification_rows.labelled_texts(table(**content), "label", None)
    assert expected in str(raised.value)


def test_validation_labels_are_read_like_the_training_labels() -> None:
    scores = table(text=["a", "b"], label=[0.5, 2.0])
    train = classification_rows.labelled_texts(scores, "label", None)
    whole = table(text=["a", "b"], label=["1", "2"])
    validation = classification_rows.labelled_texts(whole, "label", None, train.problem_type)
    assert (list(train.labels), list(validation.labels)) == ([0.5, 2.0], [1.0, 2.0])
    with pytest.raises(UsageError, match=r"row 1: column 'label' holds '0\.5', expected a class"):
        classification_rows.labelled_texts(table(text=["a"], label=["0.5"]), "label", None, labels.SINGLE_LABEL)


def test_several_labels_per_row_have_names_of_all_rows() -> None:
    data = classification_rows.labelled_texts(
        table(text=["a", "b", "c"], label=[["joy", "anger"], [], ["joy", "joy"]]), "label", None
    )
    assert data.problem_type == labels.MULTI_LABEL
    assert data.labels == [["joy", "anger"], [], ["joy"]]
    assert classification_rows.distinct(data) == ["anger", "joy"]
    with pytest.raises(UsageError, match="'anger'"):
        classification_rows.check_known_labels(["joy"], data)
    empty = classification_rows.labelled_texts(table(text=["a"], label=[[]]), "label", None)
    with pytest.raises(UsageError, match="no row has a label"):
        classification_rows.check_label_names([], empty)


def test_validation_labels_must_occur_in_the_training_data() -> None:
    data = classification_rows.labelled_texts(table(text=["a"], label=["maybe"]), "label", None)
    with pytest.raises(UsageError, match="'maybe'"):
        classification_rows.check_known_labels(["no", "yes"], data)
    classification_rows.check_known_labels(["maybe", "no"], data)


def test_training_labels_must_be_classes() -> None:
    one = classification_rows.labelled_texts(table(text=["a", "b"], label=["1", "1"]), "label", None)
    with pytest.raises(UsageError, match="all 2 rows have the label '1'"):
        classification_rows.check_label_names(["1"], one)
    names = [str(number) for number in range(30)]
    many = classification_rows.labelled_texts(table(text=["a"] * 30, label=names), "label", None)
    with pytest.raises(UsageError, match="30 different labels in 30 rows"):
        classification_rows.check_label_names(names, many)
    classification_rows.check_label_names(["0", "1"], one)


def test_text_column_names_are_one_or_two() -> None:
    assert parse_text_columns("a, b") == ("a", "b")
    assert parse_text_columns(None) is None
    for value in ("", "a,b,c"):
        with pytest.raises(UsageError, match="expected one or two"):
            parse_text_columns(value)


def question(answers: Any, **more: list[Any]) -> DataTable:
    return table(question=["where?"], context=["tom lives in paris"], answers=[answers], **more)


def test_answers_are_read_in_both_formats() -> None:
    for answers in (
        {"text": ["paris"], "answer_start": [13]},
        [{"text": "paris", "answer_start": 13}],
    ):
        item = classification_rows.questions(question(answers), with_negative=False).items[0]
        assert (item.answers, item.starts) == (("paris",), (13,))


@pytest.mark.parametrize(
    "answers",
    [
        "paris",
        {"text": ["paris"]},
        {"text": "paris", "answer_start": 13},
        {"text": ["a"], "answer_start": []},
        None,
    ],
    ids=str,
)
def test_answers_in_another_format_are_refused(answers: Any) -> None:
    with pytest.raises(UsageError, match="row 1: column 'answers' holds"):
        classification_rows.questions(question(answers), with_negative=True)


def test_a_question_without_an_answer_needs_the_flag() -> None:
    none: dict[str, list[Any]] = {"text": [], "answer_start": []}
    with pytest.raises(UsageError, match="--version_2_with_negative"):
        classification_rows.questions(question(none), with_negative=False)
    assert classification_rows.questions(question(none), with_negative=True).items[0].answers == ()


def test_an_answer_without_text_is_no_answer() -> None:
    empty = question({"text": [" "], "answer_start": [3]})
    with pytest.raises(UsageError, match=r"x\.\w+ row 1: the question has no answer"):
        classification_rows.questions(empty, with_negative=False)
    assert classification_rows.questions(empty, with_negative=True).items[0].answers == ()


def test_a_training_answer_that_is_not_at_its_offset_is_left_out() -> None:
    rows = table(
        question=["q", "q"],
        context=["tom lives in paris"] * 2,
        answers=[{"text": ["paris"], "answer_start": [start]} for start in (13, 12)],
    )
    kept, left_out = classification_rows.trainable(classification_rows.questions(rows, with_negative=False))
    assert (len(kept), left_out) == (1, 1)
    wrong = classification_rows.questions(question({"text": ["paris"], "answer_start": [0]}), with_negative=False)
    with pytest.raises(UsageError, match="no answer is found at its answer_start"):
        classification_rows.trainable(wrong)


def test_different_rows_have_different_digests() -> None:
    def digest(*texts: str) -> str:
        return classification_rows.labelled_texts(
            table(text=list(texts), label=["1"] * len(texts)), "label", None
        ).digest

    assert digest("ab", "c") == digest("ab", "c")
    assert len({digest("ab", "c"), digest("a", "bc"), digest("c", "ab"), digest("ab")}) == 4
