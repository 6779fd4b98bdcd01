"""Rows for the tests of training tasks: conversations and tagged sentences about where people live."""

from __future__ import annotations

import json
from typing import Any

HOMES = {"tom": "paris", "mary": "rome", "anna": "oslo", "peter": "london"}


def talks() -> list[dict[str, Any]]:
    """24 conversations of one or two questions, of very different lengths."""
    rows = []
    for number in range(24):
        name = list(HOMES)[number % 4]
        messages = [
            {"role": "user", "content": f"where does {name} live?"},
            {"role": "assistant", "content": f"{name} lives in {HOMES[name]}."},
        ]
        if number % 3 == 0:
            again = {"role": "user", "content": "and tom? " * (1 + number % 4)}
            messages += [again, {"role": "assistant", "content": "in paris."}]
        rows.append({"messages": messages})
    return rows


def tagged() -> list[dict[str, Any]]:
    tags = ["B-PER", "O", "O", "B-LOC"]
    return [{"tokens": [name, "lives", "in", place], "ner_tags": tags} for name, place in HOMES.items()] * 6


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)
