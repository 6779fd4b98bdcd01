"""Rows for language models: conversations, prompts with completions, tagged words, or plain text. Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, partial
from typing import Any, Callable

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import parse_json
from cpu_train_stack.train.data.tables import DataTable, RowStream, count_and_digest, refuse_unlabelled, short
from cpu_train_stack.train.flags.arguments import TaskArguments

# Possible names of the column with the tags, after --label_column_name.
_TAGS = ("ner_tags", "tags", "labels", "pos_tags")
# TRL's columns for the chat template: the tools that the assistant may call, and any other arguments by name.
_TOOLS, _TEMPLATE_OPTIONS = "tools", "chat_template_kwargs"


class Kind(Enum):
    """The kind of a row. The value names its columns."""

    MESSAGES = "messages"
    COMPLETION = "prompt and completion"
    TEXT = "text"


@dataclass(frozen=True)
class Conversation:
    """The messages of a row. Those from number `first` on are the completion.

    `options`: what the chat template gets beside the messages, such as the tools.
    """

    messages: list[dict[str, Any]]
    first: int
    options: dict[str, Any]


@dataclass(frozen=True)
class Documents:
    """Each item is a Conversation, a (prompt, completion) pair of texts, or a text.

    `table`: has a row for each item, and for each text that is left out because it is empty.
    """

    table: DataTable
    kind: Kind
    items: Collection[Any]
    digest: str

    @property
    def source(self) -> str:
        return self.table.source

    @property
    def empty(self) -> int:
        """The number of rows without a text."""
        return self.table.rows - len(self)

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True)
class TaggedWords:
    """The words of each row and the name of each word's tag. `empty`: how many rows without words are left out."""

    source: str
    words: list[list[str]]
    tags: list[list[str]]
    empty: int = 0

    @property
    def labels(self) -> list[str]:
        """The tags of all words."""
        return [tag for row in self.tags for tag in row]

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def digest(self) -> str:
        return count_and_digest(zip(self.words, self.tags))[1]


def kind_of(table: DataTable) -> Kind | None:
    """The kind of a table with columns for conversations or completions, None for other tables."""
    if "messages" in table.columns:
        return Kind.MESSAGES
    if "prompt" in table.columns and "completion" in table.columns:
        return Kind.COMPLETION
    return None


def tag_column(table: DataTable, asked: str) -> str | None:
    """The column that tags the words of column `tokens`, None if there are no such columns."""
    if not isinstance(next(iter(table.columns.get("tokens", ())), None), list):
        return None
    return next((name for name in (asked, *_TAGS) if name in table.columns), None)


def documents(table: DataTable, text_column: str | None) -> Documents:
    """Check and extract conversations, completions or texts. Raises UsageError that names the first bad row."""
    kind = Kind.TEXT if text_column else kind_of(table) or Kind.TEXT
    if kind is Kind.TEXT:
        name = text_column or _only_text(table)
        table.column(name, "pass --text_column_names")
        start: Callable[[], Iterator[Any]] = partial(_texts, table, name)
    else:
        start = partial(_conversations, table) if kind is Kind.MESSAGES else partial(_completions, table)
    count, digest = count_and_digest(start())
    if kind is Kind.TEXT and not count:
        raise UsageError(f"{table.source}: column '{name}' is empty in every row, expected text")
    return Documents(table, kind, RowStream(start, count), digest)


def _conversations(table: DataTable) -> Iterator[Conversation]:
    return (
        Conversation(_messages(table, row, value), 0, _options(table, row, options))
        for row, (value, *options) in enumerate(table.records("messages", *_option_columns(table)), 1)
    )


def _completions(table: DataTable) -> Iterator[Any]:
    pairs = table.records("prompt", "completion", *_option_columns(table))
    return (_completion(table, row, *record) for row, record in enumerate(pairs, 1))


def _option_columns(table: DataTable) -> tuple[str, ...]:
    return tuple(name for name in (_TOOLS, _TEMPLATE_OPTIONS) if name in table.columns)


def _options(table: DataTable, row: int, values: Sequence[Any]) -> dict[str, Any]:
    """What a row's columns pass to the chat template. `values`: of _option_columns; may be text with JSON."""
    found: dict[str, Any] = {}
    for name, value in zip(_option_columns(table), values):
        given = value
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                given = parse_json(value)
        if not given:
            continue
        if name == _TOOLS and isinstance(given, list) and all(isinstance(tool, dict) for tool in given):
            found[name] = _without_nulls(given)
        elif name == _TEMPLATE_OPTIONS and isinstance(given, dict):
            found.update(_without_nulls(given))
        else:
            expected = "a list of JSON schemas" if name == _TOOLS else "an object"
            raise UsageError(f"{table.where(row)}: column '{name}' holds {short(value)}, expected {expected}")
    return found


def _texts(table: DataTable, name: str) -> Iterator[str]:
    for row, (text,) in enumerate(table.records(name), 1):
        if text is None or text == "":
            continue
        if not isinstance(text, str):
            raise UsageError(f"{table.where(row)}: column '{name}' holds {short(text)}, expected text")
        yield text


def tagged_words(table: DataTable, label_column: str) -> TaggedWords:
    """Check and extract words and tags. Raises UsageError that names the first bad row."""
    if label_column != TaskArguments.label_column_name:  # not the default, which is a column of classes
        table.column(label_column, "correct --label_column_name")
    name = tag_column(table, label_column)
    if name is None:
        raise UsageError(
            f"{table.source} has the columns {table.listing}: token-classification needs 'tokens' with a list of "
            f"words and a list of tags in one of {', '.join(_TAGS)} (--label_column_name)"
        )
    words, tags, empty = [], [], 0
    for row, (tokens, labels) in enumerate(table.records("tokens", name), 1):
        if not isinstance(tokens, list) or not all(isinstance(word, str) for word in tokens):
            raise UsageError(f"{table.where(row)}: column 'tokens' holds {short(tokens)}, expected words")
        if not isinstance(labels, list) or len(labels) != len(tokens):
            raise UsageError(
                f"{table.where(row)}: column '{name}' holds {short(labels)}, expected {len(tokens)} tags"
            )
        refuse_unlabelled(table, row, name, labels)
        if not all(label.strip() if isinstance(label, str) else _is_class(label) for label in labels):
            raise UsageError(f"{table.where(row)}: column '{name}' holds {short(labels)}, expected tags")
        if not tokens:
            empty += 1
            continue
        words.append(tokens)
        tags.append([str(label).strip() for label in labels])
    if not words:
        raise UsageError(f"{table.source}: column 'tokens' is empty in every row, expected words")
    return TaggedWords(table.source, words, tags, empty)


def _is_class(label: Any) -> bool:
    """Whether a label is the number of a class: -100, a word without a label, is not."""
    return isinstance(label, int) and label >= 0


def _messages(table: DataTable, row: int, value: Any, name: str = "messages") -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        raise UsageError(
            f"{table.where(row)}: column '{name}' holds {short(value)}, "
            'expected [{"role": "user", "content": ".."}, ..]'
        )
    messages = []
    for number, item in enumerate(value, 1):
        message = _message(item)
        if message is None:
            raise UsageError(
                f"{table.where(row)}: message {number} of column '{name}' is {short(item)}, "
                'expected {"role": "user", "content": ".."}'
            )
        messages.append(message)
    return messages


def _message(item: Any) -> dict[str, Any] | None:
    """A message without null fields, its content as one text. None if it has neither a text nor calls of tools."""
    if not isinstance(item, dict) or not isinstance(item.get("role"), str):
        return None
    content = _text(item.get("content"))
    if not isinstance(content, str) and not (content is None and item.get("tool_calls")):
        return None
    kept = {key: value for key, value in item.items() if value is not None or key == "content"}
    return {key: content if key == "content" else _without_nulls(value) for key, value in kept.items()}


def _text(content: Any) -> Any:
    """The content of a message, as one text if it is a list of texts: [{"type": "text", "text": ".."}, ..]."""
    if not isinstance(content, list):
        return content
    found = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
    texts = [text for text in found if isinstance(text, str)]
    return "".join(texts) if content and len(texts) == len(content) else content


def _without_nulls(value: Any) -> Any:
    """JSON without the fields that are null: in Arrow, all records of a column have the same fields."""
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def _completion(table: DataTable, row: int, prompt: Any, completion: Any, *options: Any) -> Any:
    if isinstance(prompt, str) and isinstance(completion, str) and prompt and completion:
        return prompt, completion
    if isinstance(prompt, list) and isinstance(completion, list):
        asked, answered = _messages(table, row, prompt, "prompt"), _messages(table, row, completion, "completion")
        return Conversation([*asked, *answered], len(asked), _options(table, row, options))
    raise UsageError(
        f"{table.where(row)}: prompt {short(prompt)} and completion {short(completion)}, "
        "expected two texts or two lists of messages, neither of them empty"
    )


def _only_text(table: DataTable) -> str:
    if "text" in table.columns:
        return "text"
    names = [name for name, values in table.columns.items() if any(isinstance(value, str) for value in values)]
    firsts = [next((one for one in values if one is not None), None) for values in table.columns.values()]
    # If other columns hold lists, such as conversations under an unknown name, the only text may be the row's id.
    if len(names) == 1 and not any(isinstance(first, (list, dict)) for first in firsts):
        return names[0]
    raise UsageError(
        f"{table.source} has the columns {table.listing}: expected 'messages', 'prompt' and 'completion', or "
        "'text' (--text_column_names)"
    )
