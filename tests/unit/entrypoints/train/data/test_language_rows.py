"""Rows for language models, and the errors for bad rows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.data import language_rows
from cpu_train_stack.train.data.language_rows import Kind, kind_of, tag_column
from cpu_train_stack.train.data.tables import DataTable

USER, ANSWER = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}


def table(**content: list[Any]) -> DataTable:
    return DataTable("x.jsonl", content)


def test_the_columns_of_conversations_completions_and_tags_are_recognized() -> None:
    assert kind_of(table(messages=[[USER]])) is Kind.MESSAGES
    assert kind_of(table(prompt=["a"], completion=["b"], label=["c"])) is Kind.COMPLETION
    assert kind_of(table(text=["a"], label=["c"])) is None
    assert tag_column(table(tokens=[["a"]], ner_tags=[["O"]]), "label") == "ner_tags"
    assert tag_column(table(tokens=[["a"]], label=[["O"]]), "label") == "label"
    assert tag_column(table(tokens=["a b"], label=["c"]), "label") is None


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"messages": [[USER], "hello"]}, "row 2: column 'messages' holds 'hello'"),
        ({"messages": [[]]}, "row 1: column 'messages' holds []"),
        ({"messages": [[{"role": "user"}]]}, "row 1"),
        ({"prompt": ["a", "b"], "completion": ["c", ""]}, "row 2: prompt 'b' and completion ''"),
        ({"prompt": ["a"], "completion": [[ANSWER]]}, "expected two texts or two lists"),
        ({"prompt": ["a", ""], "completion": ["c", "d"]}, "row 2: prompt '' and completion 'd'"),
        ({"prompt": ["a", None], "completion": ["c", "d"]}, "row 2: prompt None and completion 'd'"),
        (
            {"messages": [[USER, {"role": "assistant", "content": None}]]},
            "row 1: message 2 of column 'messages' is {'role': 'assistant', 'content': None}, expected {\"role\"",
        ),
        ({"messages": [[USER, "hello"]]}, "row 1: message 2 of column 'messages' is 'hello'"),
        ({"messages": [[{**USER, "content": []}]]}, "row 1: message 1 of column 'messages' is"),
        (
            {"messages": [[{**USER, "content": [{"type": "text", "text": None}]}]]},
            "row 1: message 1 of column 'messages' is",
        ),
        ({"messages": [[{**USER, "content": [{"type": "image"}]}]]}, "row 1: message 1 of column 'messages' is"),
        ({"messages": [[USER]] * 2, "tools": [None, "clock"]}, "row 2: column 'tools' holds 'clock', expected a"),
        ({"messages": [[USER]], "tools": ["[" * 200_000]}, "row 1: column 'tools' holds '[[[["),
        ({"messages": [[USER]], "tools": [[1]]}, "row 1: column 'tools' holds [1], expected a list of JSON"),
        ({"messages": [[USER]], "chat_template_kwargs": [[1]]}, "column 'chat_template_kwargs' holds [1], exp"),
        ({"text": ["a", None, 3]}, "x.jsonl row 3: column 'text' holds 3"),
        ({"text": [None, ""]}, "is empty in every row"),
        ({"one": ["a"], "two": ["b"]}, "expected 'messages', 'prompt' and 'completion', or 'text'"),
        ({"id": ["a"], "conversations": [[{"from": "human", "value": "b"}]]}, "expected 'messages', 'prompt' and"),
        ({"prompt": ["a"], "chosen": [[ANSWER]], "rejected": [[ANSWER]]}, "expected 'messages', 'prompt' and"),
    ],
)
def test_a_bad_row_is_named(content: dict[str, list[Any]], expected: str) -> None:
    with pytest.raises(UsageError) as raised:
        language_rows.documents(table(**content), None)
    assert expected in str(raised.value)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"tokens": [["a"], ["b", "c"]], "ner_tags": [["O"], ["O"]]}, "row 2: column 'ner_tags' holds ['O']"),
        ({"tokens": [["a"], [1]], "ner_tags": [["O"], ["O"]]}, "row 2: column 'tokens' holds [1]"),
        ({"tokens": [["a"]], "topic": [["O"]]}, "token-classification needs 'tokens'"),
        ({"tokens": [["a"], ["b"]], "ner_tags": [["O"], [""]]}, "row 2: column 'ner_tags' holds ['']"),
        (
            {"tokens": [["a", "b"]], "ner_tags": [[-100, 0]]},
            "row 1: column 'ner_tags' holds [-100, 0], expected tags",
        ),
        ({"tokens": [[], []], "ner_tags": [[], []]}, "column 'tokens' is empty in every row"),
    ],
)
def test_every_word_needs_a_tag(content: dict[str, list[Any]], expected: str) -> None:
    with pytest.raises(UsageError) as raised:
        language_rows.tagged_words(table(**content), "label")
    assert expected in str(raised.value)


def test_a_column_of_tags_that_does_not_exist_is_not_replaced_by_another() -> None:
    with pytest.raises(UsageError, match=r"x\.jsonl has no column 'tagz', it has 'tokens', 'ner_tags'"):
        language_rows.tagged_words(table(tokens=[["a"]], ner_tags=[["O"]]), "tagz")


def test_rows_without_words_are_left_out_and_counted() -> None:
    found = language_rows.tagged_words(table(tokens=[["a"], []], ner_tags=[["O"], []]), "label")
    assert (found.words, found.tags, found.empty) == ([["a"]], [["O"]], 1)


def test_a_word_without_a_class_of_the_data_set_is_refused_with_the_number_of_classes() -> None:
    data = DataTable("x", {"tokens": [["a", "b"]], "ner_tags": [[-100, "O"]]}, {"ner_tags": ["O", "B-PER"]})
    with pytest.raises(UsageError, match="row 1: column 'ner_tags' holds -100, expected one of the data set's 2"):
        language_rows.tagged_words(data, "label")


def test_spaces_around_a_tag_are_no_part_of_it() -> None:
    found = language_rows.tagged_words(table(tokens=[["a", "b"]], ner_tags=[["O ", "O"]]), "label")
    assert found.tags == [["O", "O"]]


def test_a_text_column_can_be_chosen_and_empty_rows_are_left_out() -> None:
    found = language_rows.documents(table(messages=[[USER], [USER]], body=["a", None]), "body")
    assert (found.kind, list(found.items), found.empty) == (language_rows.Kind.TEXT, ["a"], 1)


def test_the_parts_of_a_text_are_one_text() -> None:
    parts = [{"type": "text", "text": "a", "image_url": None}, {"type": "text", "text": " b"}]
    (found,) = language_rows.documents(table(messages=[[{"role": "user", "content": parts}, ANSWER]]), None).items
    assert found.messages == [{"role": "user", "content": "a b"}, ANSWER]


def test_tools_and_their_calls_are_kept_without_the_nulls_of_arrow() -> None:
    tool = {"type": "function", "function": {"name": "clock"}}
    call = {"role": "assistant", "content": None, "tool_calls": [tool]}
    padded = [{**USER, "tool_calls": None}, {**call, "tool_calls": [{**tool, "id": None}]}]
    options = {"chat_template_kwargs": ['{"short": true}'], "tools": [json.dumps([tool])]}
    for columns in ({"messages": [padded]}, {"prompt": [padded[:1]], "completion": [padded[1:]]}):
        (found,) = language_rows.documents(table(**columns, **options), None).items
        assert found.messages == [USER, call]
        assert found.options == {"tools": [tool], "short": True}
        assert found.first == (0 if "messages" in columns else 1)
    nothing: tuple[object, ...] = (None, [], "")
    for tools in nothing:
        (found,) = language_rows.documents(table(messages=[[USER, ANSWER]], tools=[tools]), None).items
        assert found.options == {}


def test_different_rows_have_different_digests() -> None:
    first, second = (language_rows.documents(table(messages=[[USER, other]]), None) for other in (USER, ANSWER))
    assert first.digest != second.digest
