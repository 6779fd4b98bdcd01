"""Data files of every format, valid and broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from entrypoints.cli.errors import UsageError
from entrypoints.train.data.tables import Table, read

ROWS = {"text": ["a, b", 'say "c"'], "label": ["1", "0"]}
SQUAD = {
    "data": [
        {
            "title": "T",
            "paragraphs": [
                {
                    "context": "tom lives in paris",
                    "qas": [
                        {"id": "1", "question": "where?", "answers": [{"text": "paris", "answer_start": 13}]},
                        {"id": "2", "question": "why?", "answers": [], "is_impossible": True},
                    ],
                }
            ],
        }
    ]
}


def write(folder: Path, name: str, content: str) -> Path:
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.csv", 'text,label\n"a, b",1\n"say ""c""",0\n'),
        ("x.csv", '\ufefftext,label\r\n"a, b",1\r\n\r\n"say ""c""",0\r\n'),
        ("x.tsv", 'text\tlabel\na, b\t1\n"say ""c"""\t0\n'),
        ("x.json", json.dumps([{"text": "a, b", "label": "1"}, {"text": 'say "c"', "label": "0"}])),
        ("x.json", json.dumps({"data": [{"text": "a, b", "label": "1"}, {"text": 'say "c"', "label": "0"}]})),
        ("x.json", '{"text": "a, b", "label": "1"}\n{"text": "say \\"c\\"", "label": "0"}\n'),
        ("x.jsonl", '{"text": "a, b", "label": "1"}\n\n{"text": "say \\"c\\"", "label": "0"}'),
    ],
    ids=["csv", "csv-with-bom-and-crlf", "tsv", "json", "json-data", "json-lines-in-json", "jsonl"],
)
def test_every_format_gives_the_same_columns(tmp_path: Path, name: str, content: str) -> None:
    assert read(write(tmp_path, name, content)).columns == ROWS


def test_squads_format_becomes_one_row_per_question(tmp_path: Path) -> None:
    table = read(write(tmp_path, "train-v2.0.json", json.dumps(SQUAD)))
    assert table.rows == 2
    assert table.columns["context"] == ["tom lives in paris"] * 2
    assert table.columns["answers"] == [
        {"text": ["paris"], "answer_start": [13]},
        {"text": [], "answer_start": []},
    ]
    assert table.columns["id"] == ["1", "2"]


def test_a_key_that_only_some_json_rows_have_is_none_in_other_rows(tmp_path: Path) -> None:
    table = read(write(tmp_path, "x.jsonl", '{"a": 1}\n{"a": 2, "b": 3}\n'))
    assert table.columns == {"a": [1, 2], "b": [None, 3]}


def test_first_cuts_every_column() -> None:
    table = Table("t", {"a": [1, 2, 3], "b": [4, 5, 6]})
    assert table.first(2).columns == {"a": [1, 2], "b": [4, 5]}
    assert table.first(None).rows == 3


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("x.csv", "", "is empty"),
        ("x.csv", "text,label\n", "is empty"),
        ("x.json", " \n", "is empty"),
        ("x.json", "[]", "is empty"),
        ("x.json", "{}", "is empty"),
        ("x.json", "", "is empty"),
        ("x.jsonl", "\n\n", "is empty"),
        ("x.csv", "text,label\na,1\na,b,2\n", "line 3: found 3 columns, expected 2"),
        ("x.csv", "text,label\na\n", "line 2: found 1 columns, expected 2"),
        ("x.csv", 'text,label\n"a,1\n', "invalid csv"),
        ("x.csv", "text,text\na,1\n", "names a column twice"),
        ("x.json", '[{"text": "a"},\n {"text": ]', "line 2 column 11: invalid JSON"),
        ("x.jsonl", '{"text": "a"}\n{"text"\n', "line 2 column"),
        ("x.json", "3", "expected a list of objects"),
        ("x.json", "[[1]]", "row 1: found list, expected an object"),
        ("x.json", '{"data": [{"paragraphs": [{"qas": [{"id": "1"}]}]}]}', "expected SQuAD's format"),
        ("x.doc", "a", "suffix '.doc' is unknown"),
    ],
)
def test_a_bad_file_is_refused_in_one_line_that_names_it(
    tmp_path: Path, name: str, content: str, expected: str
) -> None:
    path = write(tmp_path, name, content)
    with pytest.raises(UsageError) as raised:
        read(path)
    assert expected in str(raised.value)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_bytes_that_are_not_utf8_are_refused_with_their_position(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes("text,label\ncafé,1\n".encode("latin-1"))
    with pytest.raises(UsageError, match="byte 14 is not UTF-8"):
        read(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        read(tmp_path / "none.csv")
    with pytest.raises(UsageError, match="is a folder, expected a file"):
        read(tmp_path)
