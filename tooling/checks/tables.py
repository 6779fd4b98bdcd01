"""`./inv dev tables`: the tables of figures in README.md and docs/, generated from benchmarks/results/*.json.

A page marks the place of a table with a line `<!-- table: NAME -->`, for NAME.json, and an empty line. A result is
the document of `./inv bench`, or has `columns` of its own with rows of cells. `what`, `date`, `cpu`, `torch`,
`command` (a list) and `note` describe it. Facts that nobody recorded are left out.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import write_with_folder
from cpu_train_stack.cli.say import say
from tooling.basis.figures import Columns, number, page_table, table_lines
from tooling.basis.paths import ROOT
from tooling.bench import collectives, scaling
from tooling.bench.report import Document
from tooling.bench.train.recipes import BF16, FP32, OURS
from tooling.bench.train.results import SPEEDS

RESULTS = ROOT / "benchmarks" / "results"
# A mark, and if the page has them already, the conditions and the table.
_MARKED = re.compile(r"<!-- table: ([\w-]+) -->\n(?:(?:[^\n|].*\n\n)?(?:\|.*\n)+)?")
# By the first word of the name: the columns of a page, and the rows of a document.
_KINDS: dict[str, tuple[Columns, Callable[[Document], Sequence[Mapping[str, Any]]]]] = {
    "train": ({"job": "{job}", "ranks": "{ranks}", **SPEEDS}, lambda document: document["rows"]),
    "scaling": (scaling.COLUMNS, scaling.rows_with_predictions),
    "collectives": (collectives.COLUMNS, collectives.rows_of_cases),
}
# The table of the README: the speed of `ours`, and its memory, relative to the guides' command.
HEADLINE = "headline"
_HEADLINE_ROWS = {
    "squad-guide": "SQuAD, DistilBERT (`run --adapt no-padding-answers`)",
    "mrpc-guide": "MRPC, BERT-base",
    "smollm-sft": "chats (HH-RLHF), SmolLM2-135M, all weights trained",
    "qwen-lora": "chats (HH-RLHF), Qwen2.5-0.5B, LoRA",
}
_HEADLINE_COLUMNS = {
    "EPYC with AVX512-BF16": (("train-zen4", "train-zen4-language"), BF16),
    "Xeon with AMX": (("train-granite-rapids",), BF16),
    "Xeon without bf16 instructions": (("train-ice-lake",), FP32),
}


def run() -> None:
    """Write the tables of all pages. Raises UsageError if a page names a result that does not exist."""
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if (new := fill(text)) != text:
            write_with_folder(page, new)
            say(f"wrote {page.relative_to(ROOT)}")


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def fill(page: str) -> str:
    """The text of a page with its tables."""
    return _MARKED.sub(lambda found: f"<!-- table: {found[1]} -->\n{text_of(found[1])}\n", page)


def read(name: str) -> Document:
    path = RESULTS / f"{name}.json"
    if not path.is_file():
        raise UsageError(
            f"dev tables: a page names the table {name!r}, but {path} does not exist: correct the name"
        )
    document: Document = json.loads(path.read_text(encoding="utf-8"))
    return document


def text_of(name: str) -> str:
    """The conditions of a measurement, and its table."""
    if name == HEADLINE:
        return _headline()
    document = read(name)
    if "columns" in document:
        return f"{_conditions(document)}\n\n{table_lines(document['columns'], _own_cells(document))}"
    columns, rows_of = _KINDS[name.partition("-")[0]]
    return f"{_conditions(document)}\n\n{page_table(columns, rows_of(document))}"


def _own_cells(document: Document) -> list[list[str]]:
    return [[one if isinstance(one, str) else number(one) for one in row] for row in document["rows"]]


def _conditions(document: Document) -> str:
    """`What. CPU, torch 2.13.0, date: command. Note.`"""
    torch = f"torch {document['torch']}" if "torch" in document else ""
    facts = ", ".join(filter(None, (document.get("cpu", ""), torch, document.get("date", "")[:10])))
    commands = "; ".join(f"`{command}`" for command in document.get("command", ()))
    measured = ": ".join(filter(None, (facts[:1].upper() + facts[1:] if "cpu" in document else facts, commands)))
    return " ".join(f"{part}." for part in (document.get("what"), measured, document.get("note")) if part)


def _headline() -> str:
    lines = [[label, *(_compared(job, *column) for column in _HEADLINE_COLUMNS.values())]
             for job, label in _HEADLINE_ROWS.items()]  # fmt: skip
    return table_lines(["rows like those of", *_HEADLINE_COLUMNS], lines)


def _compared(job: str, names: Sequence[str], baseline: str) -> str:
    """`4.7x speed, 0.45x memory`, or nothing. The last measurement of a recipe counts."""
    rows = {row["recipe"]: row for name in names for row in read(name)["rows"] if row["job"] == job}
    if not rows:
        return ""
    ours, other = rows[OURS], rows[baseline]
    share = ours.get("memory_share") or ours["peak_memory_bytes"] / other["peak_memory_bytes"]
    return f"{ours['ratio_to'][baseline]:.1f}x speed, {share:.2f}x memory"
