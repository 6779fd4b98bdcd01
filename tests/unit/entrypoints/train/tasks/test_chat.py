"""Conversations as texts, and the answers to learn."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any, NoReturn

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.data.language_rows import Conversation
from cpu_train_stack.train.tasks import chat

USER, ANSWER = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}


class Tokenizer:
    """A chat template: `u:a|b:b|`, after the names of the tools.

    `forgets`: earlier answers are rendered without their first letter. `ask`: the generation prompt. `end`: the
    end token, which is rendered once, after the last message, as in Phi-3's template.
    """

    chat_template = "given"
    # The letters of a text are its tokens.
    added_tokens_decoder = MappingProxyType({ord("|"): SimpleNamespace(special=True)})

    def __init__(self, forgets: bool = False, ask: str = "a:", end: str | None = None) -> None:
        self.eos_token = end
        self._forgets = forgets
        self._ask = ask

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": [] if add_special_tokens else list(map(ord, text))}

    def apply_chat_template(
        self, messages: list[Any], tokenize: bool, add_generation_prompt: bool, tools: Sequence[str] = ()
    ) -> str:
        parts = [f"t:{name}|" for name in tools]
        for number, message in enumerate(messages):
            earlier = self._forgets and message["role"] == "assistant" and number < len(messages) - 1
            parts.append(f"{message['role'][0]}:{message['content'][1 if earlier else 0 :]}|")
        return "".join(parts) + (self._ask if add_generation_prompt else self.eos_token or "")


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


def test_earlier_turns_are_learnt_from_a_template_that_ends_only_the_conversation_with_the_end_token() -> None:
    conversation = [USER, ANSWER, USER, {"role": "assistant", "content": "cc"}]
    assert learnt(Tokenizer(end="$"), conversation) == ["b|", "cc|$"]
    assert learnt(Tokenizer(forgets=True, end="$"), conversation) == ["cc|$"]


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


@pytest.mark.parametrize(
    ("given", "expected"),
    [(None, [124]), (0, [0, 124]), ([0, 1], [0, 1, 124]), (124, 124), ([1, 124], [1, 124])],
)
def test_an_answer_also_stops_at_the_templates_token(given: Any, expected: Any) -> None:
    config = SimpleNamespace(eos_token_id=given)
    chat.stop_after_answers(config, Tokenizer())
    assert config.eos_token_id == expected


def test_a_template_without_an_end_token_changes_no_stop() -> None:
    class Plain(Tokenizer):
        added_tokens_decoder = MappingProxyType({ord("|"): SimpleNamespace(special=False)})

    class Strict(Tokenizer):
        def apply_chat_template(self, *arguments: Any, **options: Any) -> NoReturn:
            raise ValueError("expected a system message")

    class Silent(Tokenizer):
        def apply_chat_template(self, *arguments: Any, **options: Any) -> str:
            return "|"

    for tokenizer in (Plain(), Strict(), Silent()):
        config = SimpleNamespace(eos_token_id=0)
        chat.stop_after_answers(config, tokenizer)
        assert config.eos_token_id == 0


def test_a_model_without_a_generation_config_is_left_alone() -> None:
    chat.stop_after_answers(None, Tokenizer())
