"""Checks in the image: which task the columns choose, and that each flag of a task exists and is explained."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.data.tables import DataTable
from cpu_train_stack.train.flags import help as help_text
from cpu_train_stack.train.flags.arguments import make_parser
from cpu_train_stack.train.tasks.registry import TASKS, infer_task

USER = {"role": "user", "content": "a"}
# The columns of a row, and the task.
CASES: tuple[tuple[dict[str, Any], str], ...] = (
    ({"question": "q", "context": "c", "answers": {}}, "question-answering"),
    ({"question": "q", "context": "c", "answers": {}, "prompt": "a", "completion": "b"}, "question-answering"),
    ({"messages": [USER]}, "text-generation"),
    ({"prompt": "a", "completion": "b", "label": "c"}, "text-generation"),
    ({"tokens": ["a"], "ner_tags": ["O"], "source": "a", "target": "b"}, "token-classification"),
    ({"tokens": ["a"], "label": ["O"]}, "token-classification"),
    ({"source": "a", "target": "b", "label": "c"}, "text2text-generation"),
    ({"tokens": "a b", "label": "c"}, "text-classification"),
)


def table(row: dict[str, Any]) -> DataTable:
    return DataTable("x.jsonl", {name: [value] for name, value in row.items()})


def main() -> None:
    for row, expected in CASES:
        assert infer_task(table(row), "label") == expected, row
    assert infer_task(table({"text": "a", "topic": "b"}), "topic") == "text-classification"
    refused = ""
    try:
        infer_task(table({"text": "a", "topic": "b"}), "label")
    except UsageError as error:
        refused = str(error)
    assert "x.jsonl has the columns 'text', 'topic'" in refused, refused
    assert all(name in refused for name in TASKS), refused
    known = {action.dest for action in make_parser(TASKS)._actions}
    flags = {name for task in TASKS.values() for name in (*task.flags.split(), *task.own_flags)}
    assert flags <= known, flags - known
    shown = " ".join(help_text.render(False, TASKS).split())
    for task in TASKS.values():
        for flag in fields(task.arguments):
            assert flag.name not in task.own_flags or f"--{flag.name} {flag.metadata['help']}" in shown, flag.name


main()
