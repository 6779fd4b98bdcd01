"""Conversations as one text with the tokenizer's chat template, and where in it the model is to speak."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from entrypoints.cli.errors import UsageError, one_line

Span = tuple[int, int]
_SPEAKER = "assistant"


def set_template(tokenizer: Any, file: str | None) -> None:
    """Takes the template from a file; it is saved with the tokenizer. Raises UsageError if there is none."""
    if file is not None:
        try:
            tokenizer.chat_template = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--chat_template_path '{file}' cannot be read: {error}") from error
    if not getattr(tokenizer, "chat_template", None):
        raise UsageError(
            "the tokenizer has no chat template, which conversations need: write --chat_template_path with a "
            "Jinja file, take the model's instruct variant, or give prompt and completion as texts"
        )


def render(tokenizer: Any, messages: Sequence[dict[str, Any]], ask: bool = False) -> str:
    """The conversation as text; with `ask`, up to where the model has to answer. Raises UsageError."""
    try:
        text: str = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=ask)
    except Exception as error:  # a template raises what it likes: TemplateError for roles out of order
        roles = ", ".join(str(message["role"]) for message in messages)
        raise UsageError(f"the chat template refuses a conversation of {roles}: {one_line(error)}") from error
    return text


def spoken(tokenizer: Any, messages: Sequence[dict[str, Any]], first: int = 0) -> tuple[str, list[Span]]:
    """The text of a conversation and the characters in it that the model is to say: each turn of the assistant
    from message `first` on, with what ends it.

    A turn counts only if the template renders the conversation up to it as the beginning of the whole: some leave
    earlier turns' thoughts out, and what is not there cannot be learnt.
    """
    whole = render(tokenizer, messages)
    spans = []
    for number, message in enumerate(messages):
        if message["role"] != _SPEAKER or number < first:
            continue
        begin = render(tokenizer, messages[:number], ask=True)
        end = render(tokenizer, messages[: number + 1])
        if end.startswith(begin) and whole.startswith(end):
            spans.append((len(begin), len(end)))
    return whole, spans
