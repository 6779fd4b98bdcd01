"""The tables of figures in README.md and docs/, and the results in benchmarks/results/ from which they follow."""

import json
import re
from datetime import date
from pathlib import Path

import pytest

from cpu_train_stack.cli.errors import UsageError
from tests.unit.tooling.bench.train.test_train import FACTS, RUNS
from tooling.bench.train import results
from tooling.checks import tables

RESULTS = sorted(tables.RESULTS.glob("*.json"))
PAGES = tables.pages()
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tables_of_a_page_are_those_of_the_results(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert tables.fill(text) == text, "run ./inv dev tables"


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_result_says_what_it_is_and_a_page_names_it(path: Path) -> None:
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["rows"]
    if "date" in found:
        date.fromisoformat(found["date"][:10])
    assert all(command.startswith(("./inv ", "ONEDNN_MAX_CPU_ISA=")) for command in found.get("command", ()))
    if "columns" in found:
        assert {len(row) for row in found["rows"]} == {len(found["columns"])}
    assert f"<!-- table: {path.stem} -->" in TEXT or f"`benchmarks/results/{path.name}`" in TEXT


def test_an_empty_place_is_filled_and_a_changed_figure_is_corrected() -> None:
    rest = "\nThe next paragraph.\n"
    filled = tables.fill(f"<!-- table: dropout-xeon -->\n{rest}")
    assert filled.endswith(f"|\n{rest}")
    assert "| bf16, forward | 7.7 | 0.43 | 18x |\n" in filled
    assert "4096 x 768, dropout of 0.1. One thread of an Intel Xeon" in filled
    assert tables.fill(filled.replace("0.43", "0.44").replace("One thread", "A thread")) == filled


def test_a_place_without_a_result_is_named() -> None:
    with pytest.raises(UsageError, match=r"names the table 'none', but .*/none\.json does not exist"):
        tables.fill("<!-- table: none -->\n")


def test_a_fresh_document_of_bench_can_be_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {**FACTS, "command": ["./inv bench train --job tiny"]}
    (tmp_path / "train-new.json").write_text(json.dumps(results.document(RUNS, {}, facts)))
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    text = tables.text_of("train-new")
    assert "2026-01-02: `./inv bench train --job tiny`." in text
    assert "| tiny | 2 | ours | 20 | 15 to 24 | 1.50x | 3.00x | 0.25 | 1.5 | 2 |" in text


def test_the_command_writes_the_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("# Page\n\n<!-- table: headline -->\n")
    (tmp_path / "README.md").write_text("# No table\n")
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    tables.run()
    rows = re.findall(
        r"^\| MRPC, BERT-base \| (.*) \|$", (tmp_path / "docs" / "page.md").read_text(), re.MULTILINE
    )
    assert rows == ["3.0x speed, 0.49x memory | 2.9x speed, 0.54x memory | 2.3x speed, 0.52x memory"]
