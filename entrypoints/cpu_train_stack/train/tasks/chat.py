"""Conversations as texts in the tokenizer's chat template, and the characters of the assistant's answers.

No torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cpu_train_stack.cli.errors import UsageError, one_line
from cpu_train_stack.train.data.language_rows import Conversation

Span = tuple[int, int]
_ASSISTANT = "assistant"
_NONE: Mapping[str, Any] = MappingProxyType({})


def set_template(tokenizer: Any, file: str | None) -> None:
    """Set the chat template from a file, if any. Raises UsageError if the tokenizer then has no template."""
    if file is not None:
        try:
            tokenizer.chat_template = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--chat_template_path '{file}' cannot be read: {error}") from error
    if not getattr(tokenizer, "chat_template", None):
        raise UsageError(
            "the tokenizer has no chat template, which conversations need: pass --chat_template_path with a "
            "Jinja file, use the instruct variant of the model, or provide prompt and completion as texts"
        )


def render(
    tokenizer: Any, messages: Sequence[dict[str, Any]], ask: bool = False, options: Mapping[str, Any] = _NONE
) -> str:
    """The conversation as text, with `ask` followed by the start of an answer. Raises UsageError.

    `options`: what the template gets beside the messages.
    """
    try:
        text: str = tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=ask, **options
        )
    except Exception as error:  # a template may raise anything, e.g. TemplateError for roles out of order
        roles = ", ".join(str(message["role"]) for message in messages)
        raise UsageError(f"the chat template refuses a conversation of {roles}: {one_line(error)}") from error
    return text


def render_with_answers(tokenizer: Any, conversation: Conversation) -> tuple[str, list[Span]]:
    """The text of a conversation, and the characters (begin, end) of each answer to learn.

    Answers are the assistant's turns of the completion, including the text that ends a turn. A turn is left out
    if the template renders it differently inside the conversation: some templates remove earlier thoughts. A
    greeting, with which the assistant begins the conversation, answers nothing and is left out too.
    """
    text = render(tokenizer, conversation.messages, options=conversation.options)
    spans = []
    for begin, whole in _openings(tokenizer, conversation):
        # Some templates, such as Phi-3's, write the end token once, after the last message.
        end = whole if text.startswith(whole) else whole.removesuffix(tokenizer.eos_token or "")
        if end.startswith(begin) and text.startswith(end):
            spans.append((len(begin), len(end)))
    return text, spans


def answers(conversation: Conversation) -> list[int]:
    """The numbers of the messages to learn: the assistant's in the completion, without a greeting."""
    return [
        number
        for number, message in enumerate(conversation.messages)
        if message["role"] == _ASSISTANT and number >= max(conversation.first, 1)
    ]


def _token_after_answers(tokenizer: Any) -> int | None:
    """The special token with which the template ends an answer, None if it ends answers without one.

    It may differ from the tokenizer's end token: the templates of many base models end a turn with another token.
    """
    answer = "Yes."
    messages = [{"role": "user", "content": "Is it?"}, {"role": _ASSISTANT, "content": answer}]
    try:
        _, found, end = render(tokenizer, messages).rpartition(answer)
    except UsageError:  # the template needs other messages
        return None
    added = tokenizer.added_tokens_decoder
    tokens = tokenizer(end, add_special_tokens=False)["input_ids"] if found else ()
    return next((token for token in tokens if token in added and added[token].special), None)


def stop_after_answers(config: Any, tokenizer: Any) -> None:
    """Let `generate` also stop at the token with which the template ends an answer. `config`: GenerationConfig."""
    if config is None:  # of a model that does not generate
        return
    given, end = config.eos_token_id, _token_after_answers(tokenizer)
    stops = given if isinstance(given, list) else [] if given is None else [given]
    if end is not None and end not in stops:
        config.eos_token_id = [*stops, end]


def opens_differently(tokenizer: Any, conversation: Conversation) -> bool:
    """Whether no answer begins with the template's generation prompt, which may open a thought, for example."""
    found = list(_openings(tokenizer, conversation))
    return bool(found) and not any(end.startswith(begin) for begin, end in found)


def _openings(tokenizer: Any, conversation: Conversation) -> Iterator[tuple[str, str]]:
    """The text up to the start of each answer, and the text up to its end."""
    messages, options = conversation.messages, conversation.options
    for number in answers(conversation):
        yield (
            render(tokenizer, messages[:number], ask=True, options=options),
            render(tokenizer, messages[: number + 1], options=options),
        )
