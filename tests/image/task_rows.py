"""Rows for the tests of training tasks, about where people live, and command lines that are refused."""

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


def pairs() -> list[dict[str, Any]]:
    """24 questions of different lengths with their answers."""
    names = list(HOMES) * 6
    rows = enumerate(names)
    return [
        {"source": f"where does {name} live?" + " say!" * (row % 3), "target": f"in {HOMES[name]}."}
        for row, name in rows
    ]


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


# Flags of runs that end with one line, and words of this line.
BAD: dict[str, tuple[dict[str, object], str]] = {
    "an encoder as decoder": (
        {"model_name_or_path": "/output/bert", "train_file": "/output/text.txt", "task": "text-generation"},
        "sees the tokens that it has to predict",
    ),
    "texts without a task": (
        {"train_file": "/output/text.txt"},
        "pass --task text-generation or --task fill-mask",
    ),
    "no answer to learn": ({"train_file": "/output/silent.jsonl"}, "no row has an answer"),
    "answers of texts": (
        {"train_file": "/output/text.txt", "task": "text-generation", "completion_only_loss": "true"},
        "--completion_only_loss needs rows with messages",
    ),
    "no file with a template": (
        {"train_file": "/output/text.txt", "task": "text-generation", "chat_template_path": "/output/none.jinja"},
        "--chat_template_path '/output/none.jinja' cannot be read",
    ),
    "no chat template": (
        {"model_name_or_path": "/output/bert", "train_file": "/output/chat.jsonl"},
        "has no chat template",
    ),
    "nothing to merge": ({"train_file": "/output/chat.jsonl", "merge_adapter": True}, "add --use_peft"),
    "no compiler": (
        {"train_file": "/output/chat.jsonl", "torch_compile": True},
        "needs a C++ compiler (g++) and torch's headers, not found in this image",
    ),
    "sharded and merged": (
        {"train_file": "/output/chat.jsonl", "use_peft": True, "merge_adapter": True, "fsdp": "full_shard"},
        "exclude each other",
    ),
    "no such layer": (
        {"train_file": "/output/chat.jsonl", "use_peft": True, "lora_target_modules": "nothing"},
        "--lora_target_modules nothing: ",
    ),
    "an encoder-decoder model as decoder": (
        {"model_name_or_path": "/output/t5", "train_file": "/output/text.txt", "task": "text-generation"},
        "pass --task text2text-generation",
    ),
    "pairs without a target": (
        {"model_name_or_path": "/output/t5", "train_file": "/output/pairs.jsonl", "text_column_names": "source"},
        "expected a source and a target",
    ),
    "an encoder for pairs": (
        {"model_name_or_path": "/output/bert", "train_file": "/output/pairs.jsonl"},
        "cannot be loaded for text2text-generation",
    ),
    "no mask": (
        {"train_file": "/output/text.txt", "task": "fill-mask"},
        "has no padding token, expected an encoder",
    ),
}
