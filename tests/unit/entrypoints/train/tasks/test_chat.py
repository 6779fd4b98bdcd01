"""Conversations as texts, and the answers to learn."""

from __future__ import annotations

from typing import Any

import pytest

from entrypoints.cli.errors import UsageError
from entrypoints.train.tasks import chat

USER, ANSWER = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}


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


def learnt(tokenizer: Tokenizer, messages: list[dict[str, str]], first: int = 0) -> list[str]:
    text, spans = chat.render_with_answers(tokenizer, messages, first)
    return [text[begin:end] for begin, end in spans]


def test_only_the_assistants_turns_with_their_ends_are_learnt() -> None:
    conversation = [USER, ANSWER, USER, {"role": "assistant", "content": "cc"}]
    assert learnt(Tokenizer(), conversation) == ["b|", "cc|"]
    assert learnt(Tokenizer(), conversation, first=2) == ["cc|"]
    assert learnt(Tokenizer(), [USER]) == []


def test_a_greeting_of_the_assistant_is_not_learnt() -> None:
    class Strict(Tokenizer):
        def apply_chat_template(self, messages: list[Any], tokenize: bool, add_generation_prompt: bool) -> str:
            assert messages, "transformers refuses a conversation without messages"
            return super().apply_chat_template(messages, tokenize, add_generation_prompt)

    assert learnt(Strict(), [ANSWER, USER, {"role": "assistant", "content": "cc"}]) == ["cc|"]


def test_a_turn_that_the_template_renders_differently_later_is_not_learnt() -> None:
    conversation = [USER, ANSWER, USER, {"role": "assistant", "content": "cc"}]
    assert learnt(Tokenizer(forgets=True), conversation) == ["cc|"]


def test_a_tokenizer_without_a_template_needs_a_template_file(tmp_path: Any) -> None:
    tokenizer = Tokenizer()
    tokenizer.chat_template = ""
    with pytest.raises(UsageError, match="no chat template"):
        chat.set_template(tokenizer, None)
    (tmp_path / "chat.jinja").write_text("{{ messages }}")
    chat.set_template(tokenizer, str(tmp_path / "chat.jinja"))
    assert tokenizer.chat_template == "{{ messages }}"
