"""The report as an HTML file: complete, without network, and no text of the data becomes HTML."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.page import render
from cpu_train_stack.report import folder as report
from cpu_train_stack.report import main
from tests import synthetic_records

EVIL = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(2)> {{data}} \u2028"


def data_of(text: str) -> str:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_file_is_complete(tmp_path: Path) -> None:
    path = report.write(synthetic_records.write(tmp_path))
    assert path == tmp_path / "report.html"
    text = path.read_text(encoding="utf-8")
    assert json.loads(data_of(text))["state"] == "finished"
    assert "{{" not in text.replace("{{data}}", "")
    assert "Permission is hereby granted, free of charge" in text
    assert list(tmp_path.glob(".report*")) == []


def test_the_file_loads_nothing(tmp_path: Path) -> None:
    text = report.write(synthetic_records.write(tmp_path)).read_text(encoding="utf-8")
    assert not re.search(r"<link|<img|<iframe|\ssrc=|@import|url\(|fetch\(|XMLHttpRequest", text)
    assert "default-src &#x27;none&#x27;" in text


def test_texts_of_the_data_do_not_become_html(tmp_path: Path) -> None:
    synthetic_records.write(
        tmp_path,
        change=lambda start: replace(start, config={"model_name_or_path": EVIL}, host=EVIL, command=[EVIL]),
    )
    text = report.write(tmp_path).read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert "<img" not in text
    assert text.count("<script") == 3
    document = json.loads(data_of(text))
    assert document["title"] == f"{EVIL} in {tmp_path.name}: training report"


def test_names_that_are_not_utf_8_are_shown_with_escapes(tmp_path: Path) -> None:
    """Linux allows any bytes in the names of files."""
    name = os.fsdecode(b"donn\xe9es")
    folder = synthetic_records.write(
        tmp_path / name, steps=12, change=lambda start: replace(start, config={"model_name_or_path": f"/{name}"})
    )
    document = json.loads(data_of(report.write(folder).read_text(encoding="utf-8")))
    assert document["title"].startswith("/donn\udce9es in donn")


@pytest.mark.parametrize("text", ["</script>", "<!--", "a & b", "\u2028\u2029", 'quote " \\'])
def test_json_for_a_script_element_is_json_without_html(text: str) -> None:
    written = render.json_text({"text": text})
    assert json.loads(written) == {"text": text}
    assert not set(written) & set("<>&\u2028\u2029")


def test_the_command_prints_the_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = synthetic_records.write(tmp_path / "job")
    assert main.main([str(folder)]) == 0
    assert main.main([str(folder), "--output", str(tmp_path / "a.html")]) == 0
    assert (
        main.main([str(folder), str(synthetic_records.write(tmp_path / "b")), "--output", str(tmp_path / "c")])
        == 0
    )
    assert capsys.readouterr().out.split() == [
        str(folder / "report.html"),
        str(tmp_path / "a.html"),
        str(tmp_path / "c"),
    ]


def test_control_characters_of_a_folders_name_are_written_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main([str(synthetic_records.write(tmp_path / "a\x1b]0;title\x07"))]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/a\\x1b]0;title\\x07/report.html\n"


def test_a_folder_without_records_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no records of a job: expected _records/rank-\*\.jsonl"):
        main.main([str(tmp_path)])


def test_records_that_cannot_be_read_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "_records" / "rank-00000.jsonl").mkdir(parents=True)
    with pytest.raises(
        UsageError, match=r"cannot read '.*rank-00000.jsonl': is not a regular file; read it as the user"
    ):
        main.main([str(tmp_path)])


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    folder = synthetic_records.write(tmp_path / "job", steps=12)
    with pytest.raises(UsageError, match=r"cannot write .*: No such file or directory; name a file in a folder"):
        main.main([str(folder), "--output", str(tmp_path / "none" / "a.html")])


def test_result_json_of_an_earlier_job_is_not_shown(tmp_path: Path) -> None:
    synthetic_records.write(tmp_path, steps=12)
    result = tmp_path / "result.json"
    result.write_text('{"metric_name": "f1", "metric_after": 0.5}')
    os.utime(result, (synthetic_records.BEGIN + 60, synthetic_records.BEGIN + 60))
    assert '"F1"' in report.write(tmp_path).read_text(encoding="utf-8")
    os.utime(result, (synthetic_records.BEGIN - 60, synthetic_records.BEGIN - 60))
    assert '"F1"' not in report.write(tmp_path).read_text(encoding="utf-8")


@pytest.mark.parametrize(("text", "found"), [("{", "expected the JSON that"), ("[]", "found list")])
def test_a_damaged_result_json_is_one_line(text: str, found: str, tmp_path: Path) -> None:
    synthetic_records.write(tmp_path, steps=12)
    result = tmp_path / "result.json"
    result.write_text(text)
    os.utime(result, (synthetic_records.BEGIN + 60, synthetic_records.BEGIN + 60))
    with pytest.raises(UsageError, match=found):
        report.write(tmp_path)
