"""Read JSON documents, JSON lines and SQuAD's nested JSON. Errors name the file, the place and the fix."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.data.opening import open_text
from cpu_train_stack.train.data.remote import shown

Row = dict[str, Any]
# How JSON writes half of a character, a surrogate of UTF-16.
_HALVES = re.compile(r"\\u[dD][89a-fA-F]")


def document(path: Path) -> list[Row] | None:
    """The rows of a JSON document; None for JSON lines, which often have the suffix .json. Raises UsageError."""
    with open_text(path) as file:
        lines = filter(str.strip, file)
        first, second = next(lines, ""), next(lines, None)
    try:
        if second is not None and isinstance(json.loads(first), dict):
            return None
    except (ValueError, RecursionError):
        pass
    return _rows(path)


def _rows(path: Path) -> list[Row]:
    with open_text(path) as file:
        text = file.read()
    if not text.strip():
        return []
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise _broken(path, error, error.lineno) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"data file '{shown(path)}': {_too_much(error)}") from error
    has_halves = _HALVES.search(text) is not None
    if isinstance(value, dict) and isinstance(value.get("data"), list):
        value = value["data"]
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        raise UsageError(
            f"data file '{shown(path)}': found one {type(value).__name__}, expected a list of objects"
        )
    if value and isinstance(value[0], dict) and "paragraphs" in value[0]:
        value = list(_flatten_squad(value, path))
    found = [_object(row, path, number) for number, row in enumerate(value, 1)]
    if has_halves:
        _refuse_halves(found, path, 1)
    return found


def _refuse_halves(rows: Iterable[Row], path: Path, first: int) -> None:
    """Raise UsageError for half of a character, which JSON can write, but which is no text. `first`: the number
    of the first row."""
    for number, row in enumerate(rows, first):
        try:
            json.dumps(row, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"data file '{shown(path)}' row {number}: found \\u{ord(error.object[error.start]):x}, half of a "
                "character, expected text: correct or remove the row"
            ) from error


def _flatten_squad(articles: Iterable[Any], path: Path) -> Iterable[Row]:
    """One row per question, from the format of SQuAD 1.1 and 2.0 (rajpurkar.github.io/SQuAD-explorer)."""
    for article in articles:
        try:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    answers = question.get("answers", [])
                    yield {
                        "id": question["id"],
                        "title": article.get("title", ""),
                        "context": paragraph["context"],
                        "question": question["question"],
                        "answers": {
                            "text": [answer["text"] for answer in answers],
                            "answer_start": [answer["answer_start"] for answer in answers],
                        },
                    }
        except (KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f"data file '{shown(path)}': found an entry without {error}, expected SQuAD's format (data, "
                "paragraphs, context, qas, id, question, answers)"
            ) from error


def read_lines(path: Path) -> Iterator[Row]:
    """One row per line. Raises UsageError."""
    with open_text(path) as file:
        rows = 0
        for number, line in enumerate(file, 1):
            if line.strip():
                rows += 1
                row = _object(_parse(line, path, number), path, rows)
                if _HALVES.search(line):
                    _refuse_halves([row], path, rows)
                yield row


def _parse(text: str, path: Path, line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise _broken(path, error, line) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"data file '{shown(path)}' line {line}: {_too_much(error)}") from error


def _too_much(error: Exception) -> str:
    """What Python refuses in valid JSON."""
    found = (
        "lists or objects that are nested too deeply"
        if isinstance(error, RecursionError)
        else "a number of thousands of digits"
    )
    return f"found {found}, expected values that Python reads"


def _broken(path: Path, error: json.JSONDecodeError, line: int) -> UsageError:
    return UsageError(f"data file '{shown(path)}' line {line} column {error.colno}: invalid JSON, {error.msg}")


def _object(row: Any, path: Path, number: int) -> Row:
    if not isinstance(row, dict):
        raise UsageError(f"data file '{shown(path)}' row {number}: found {type(row).__name__}, expected an object")
    return row
