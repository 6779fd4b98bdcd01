"""Conversations as texts, and the answers to learn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from entrypoints.cli.errors import UsageError
from entrypoints.train.data.language_rows import Conversation
from entrypoints.train.tasks import chat

USER, ANSWER = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}


class Tokenizer:
    """A chat template: `u:a|b:b|`, after the names of the tools.

    `forgets`: earlier answers are rendered without their first letter. `ask`: the generation prompt.
    """

    chat_template = "given"

    def __init__(self, forgets: bool = False, ask: str = "a:") -> None:
        self._forgets = forgets
        self._ask = ask

    def apply_chat_template(
        self, messages: list[Any], tokenize: bool, add_generation_prompt: bool, tools: Sequence[str] = ()
    ) -> str:
        parts = [f"t:{name}|" for name in tools]
        for number, message in enumerate(messages):
            earlier = self._forgets and message["role"] == "assistant" and number < len(messages) - 1
            parts.append(f"{message['role'][0]}:{message['content'][1 if earlier else 0 :]}|")
        return "".join(parts) + (self._ask if add_generation_prompt else "")


def learnt(tokenizer: Tokenizer, messages: list[dict[str, str]], first: int = 0, **options: object) -> list[str]:
    text, spans = chat.render_with_answers(tokenizer, Conversation(messages, first, options))
    return [text[begin:end] for begin, end in spans]


def test_only_the_assistants_turns_with_their_ends_are_learnt() -> None:
    conversation = [USER, ANSWER, USER, {"role": "assistant", "content": "cc"}]
    assert learnt(Tokenizer(), conversation) == ["b|", "cc|"]
    assert learnt(Tokenizer(), conversation, first=2) == ["cc|"]
    assert learnt(Tokenizer(), [USER]) == []


def test_a_greeting_of_the_assistant_is_not_learnt() -> None:
    class Strict(Tokenizer):
        def apply_chat_template(self, messages: list[Any], *arguments: Any, **options: Any) -> str:
            assert messages, "transformers refuses a conversation without messages"
            return super().apply_chat_template(messages, *arguments, **options)

    assert learnt(Strict(), [ANSWER, USER, {"role": "assistant", "content": "cc"}]) == ["cc|"]


def test_a_turn_that_the_template_renders_differently_later_is_not_learnt() -> None:
    conversation = [USER, ANSWER, USER, {"role": "assistant", "content": "cc"}]
    assert learnt(Tokenizer(forgets=True), conversation) == ["cc|"]


def test_the_template_gets_the_tools_of_a_conversation() -> None:
    conversation = Conversation([USER, ANSWER], 0, {"tools": ["clock"]})
    text, _ = chat.render_with_answers(Tokenizer(), conversation)
    assert text == "t:clock|u:a|a:b|"
    assert learnt(Tokenizer(), [USER, ANSWER, USER, ANSWER], tools=["clock"]) == ["b|", "b|"]


def test_a_generation_prompt_that_opens_a_thought_is_found() -> None:
    thinking, conversation = Tokenizer(ask="a:<think>"), Conversation([USER, ANSWER], 0, {})
    assert chat.render_with_answers(thinking, conversation)[1] == []
    assert chat.opens_differently(thinking, conversation)
    assert not chat.opens_differently(Tokenizer(), conversation)
    assert not chat.opens_differently(thinking, Conversation([USER], 0, {}))


def test_a_tokenizer_without_a_template_needs_a_template_file(tmp_path: Any) -> None:
    tokenizer = Tokenizer()
    tokenizer.chat_template = ""
    with pytest.raises(UsageError, match="no chat template"):
        chat.set_template(tokenizer, None)
    (tmp_path / "chat.jinja").write_text("{{ messages }}")
    chat.set_template(tokenizer, str(tmp_path / "chat.jinja"))
    assert tokenizer.chat_template == "{{ messages }}"
