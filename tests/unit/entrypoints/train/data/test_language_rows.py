"""Rows for language models, the spans that the assistant says, and how rows are packed."""

from __future__ import annotations

import random
from typing import Any

import pytest

from entrypoints.cli.errors import UsageError
from entrypoints.train.data import classification_rows, language_rows
from entrypoints.train.data.tables import Table
from entrypoints.train.tasks import chat, packing

USER, ANSWER = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}


def table(**content: list[Any]) -> Table:
    return Table("x.jsonl", content)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"messages": [[USER]]}, "text-generation"),
        ({"prompt": ["a"], "completion": ["b"], "label": ["c"]}, "text-generation"),
        ({"tokens": [["a"]], "ner_tags": [["O"]]}, "token-classification"),
        ({"tokens": [["a"]], "label": [["O"]]}, "token-classification"),
        ({"tokens": ["a b"], "label": ["c"]}, "text-classification"),
    ],
    ids=["messages", "completion", "tags", "own tag column", "text called tokens"],
)
def test_the_task_is_inferred_where_the_columns_leave_no_doubt(
    content: dict[str, list[Any]], expected: str
) -> None:
    assert classification_rows.infer_task(table(**content), "label") == expected


def test_texts_alone_may_be_for_either_task_so_it_has_to_be_named() -> None:
    with pytest.raises(UsageError, match="write --task text-generation or --task fill-mask"):
        classification_rows.infer_task(table(text=["a"]), "label")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"messages": [[USER], "hello"]}, "row 2: column 'messages' holds 'hello'"),
        ({"messages": [[]]}, "row 1: column 'messages' holds []"),
        ({"messages": [[{"role": "user"}]]}, "row 1"),
        ({"prompt": ["a", "b"], "completion": ["c", ""]}, "row 2: prompt 'b' and completion ''"),
        ({"prompt": ["a"], "completion": [[ANSWER]]}, "expected two texts or two lists"),
        ({"text": ["a", 3]}, "column 'text' holds 3"),
        ({"text": [None, ""]}, "is empty in every row"),
        ({"one": ["a"], "two": ["b"]}, "expected 'messages', 'prompt' and 'completion', or 'text'"),
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
    ],
)
def test_words_and_tags_must_go_together(content: dict[str, list[Any]], expected: str) -> None:
    with pytest.raises(UsageError) as raised:
        language_rows.tagged_words(table(**content), "label")
    assert expected in str(raised.value)


def test_a_text_column_can_be_named_and_empty_rows_are_left_out() -> None:
    found = language_rows.documents(table(messages=[[USER], [USER]], body=["a", None]), "body")
    assert (found.kind, found.items) == (language_rows.Kind.TEXT, ["a"])


def test_other_rows_have_another_digest() -> None:
    first, second = (language_rows.documents(table(messages=[[USER, other]]), None) for other in (USER, ANSWER))
    assert first.digest() != second.digest()


class Tokenizer:
    """A chat template: `u:a|b:b|`. `forgets`: earlier answers are rendered without their first letter."""

    chat_template = "given"

    def __init__(self, forgets: bool = False) -> None:
        self._forgets = forgets

    def apply_chat_template(self, messages: list[Any], tokenize: bool, add_generation_prompt: bool) -> str:
        parts = []
        for number, message in enumerate(messages):
            earlier = self._forgets and message["role"] == "assistant" and number < len(messages) - 1
            parts.append(f"{message['role'][0]}:{message['content'][1 if earlier else 0 :]}|")
        return "".join(parts) + ("a:" if add_generation_prompt else "")


def said(tokenizer: Tokenizer, messages: list[dict[str, str]], first: int = 0) -> list[str]:
    text, spans = chat.render_with_answers(tokenizer, messages, first)
    return [text[begin:end] for begin, end in spans]


def test_the_assistants_turns_are_learnt_with_their_ends_and_nothing_else() -> None:
    talk = [USER, ANSWER, USER, {"role": "assistant", "content": "cc"}]
    assert said(Tokenizer(), talk) == ["b|", "cc|"]
    assert said(Tokenizer(), talk, first=2) == ["cc|"]
    assert said(Tokenizer(), [USER]) == []


def test_a_turn_that_the_template_renders_otherwise_later_on_is_not_learnt() -> None:
    talk = [USER, ANSWER, USER, {"role": "assistant", "content": "cc"}]
    assert said(Tokenizer(forgets=True), talk) == ["cc|"]


def test_a_tokenizer_without_a_template_is_refused_or_given_one(tmp_path: Any) -> None:
    tokenizer = Tokenizer()
    tokenizer.chat_template = ""
    with pytest.raises(UsageError, match="no chat template"):
        chat.set_template(tokenizer, None)
    (tmp_path / "chat.jinja").write_text("{{ messages }}")
    chat.set_template(tokenizer, str(tmp_path / "chat.jinja"))
    assert tokenizer.chat_template == "{{ messages }}"


def test_every_row_is_packed_once_and_no_bin_is_too_full() -> None:
    chance = random.Random(3)  # noqa: S311 - lengths, not secrets
    lengths = [chance.randint(1, 64) for _ in range(500)]
    found = packing.bins(lengths, 64)
    assert sorted(row for rows in found for row in rows) == list(range(500))
    sums = [sum(lengths[row] for row in rows) for rows in found]
    assert max(sums) <= 64
    assert len(found) <= 1.05 * -(-sum(lengths) // 64)  # random lengths pack nearly without room
    assert found == packing.bins(lengths, 64)


def test_rows_are_packed_by_hand() -> None:
    assert packing.bins([3, 5, 2, 6], 8) == [[3, 2], [1, 0]]
    assert packing.bins([], 8) == []
    with pytest.raises(ValueError, match="row 0 has 9 tokens"):
        packing.bins([9], 8)
