"""Data files of every format, valid and broken."""

from __future__ import annotations

import gzip
import json
import os
import socket
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.data.tables import DataTable, read

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
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    return path


def columns(table: DataTable) -> dict[str, list[Any]]:
    return {name: list(values) for name, values in table.columns.items()}


@pytest.mark.parametrize("compressed", ["", ".gz"], ids=["plain", "gz"])
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
def test_every_format_gives_the_same_columns(tmp_path: Path, name: str, content: str, compressed: str) -> None:
    table = read(str(write(tmp_path, name + compressed, content)))
    assert columns(table) == ROWS
    assert columns(table) == ROWS  # each time they are read
    assert list(table.records("label", "text")) == [("1", "a, b"), ("0", 'say "c"')]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        pytest.param("x.csv", "a\n01\n1.0\n", ["01", "1.0"], id="numbers-in-csv"),
        pytest.param("x.csv", "a\nNA\nnull\n", ["NA", "null"], id="words-that-may-mean-nothing"),
        pytest.param("x.csv", "a\n #b \n", [" #b "], id="spaces-and-comments"),
        pytest.param("x.csv", 'a,b\r\n"c\r\nd",\r\n', ["c\r\nd"], id="line-end-in-quotes"),
        pytest.param("x.jsonl", '{"a": "01"}\n{"a": "2"}\n', ["01", "2"], id="numbers-in-json-texts"),
        pytest.param("x.jsonl", '{"a": "2020-01-01"}\n', ["2020-01-01"], id="dates"),
        pytest.param("x.jsonl", '{"a": 1}\n{"a": "1"}\n{"a": true}\n', [1, "1", True], id="several-types"),
        pytest.param("x.jsonl", '{"a": 1}\n{"a": null}\n{"a": 2.5}\n', [1, None, 2.5], id="null-and-fraction"),
        pytest.param("x.jsonl", f'{{"a": {10**20}}}\n', [10**20], id="large-number"),
        pytest.param("x.jsonl", '{"a": "[]"}\n{"a": [{"b": 1}]}\n', ["[]", [{"b": 1}]], id="json-in-a-text"),
        pytest.param("x.jsonl", '{"a": {}}\n{"a": {"b": 1}}\n', [{}, {"b": 1}], id="objects-with-other-keys"),
        pytest.param("x.txt", "b \r\n  \nc\u2028d", ["b ", "c\u2028d"], id="lines-of-text"),
    ],
)
def test_a_value_is_what_the_file_says(tmp_path: Path, name: str, content: str, expected: list[Any]) -> None:
    found = list(read(str(write(tmp_path, name, content))).columns["a" if name != "x.txt" else "text"])
    assert list(map(repr, found)) == list(map(repr, expected))  # 1, 1.0 and True are equal


def test_squads_format_becomes_one_row_per_question(tmp_path: Path) -> None:
    table = read(str(write(tmp_path, "train-v2.0.json", json.dumps(SQUAD))))
    found = columns(table)
    assert table.rows == 2
    assert found["context"] == ["tom lives in paris"] * 2
    assert found["answers"] == [
        {"text": ["paris"], "answer_start": [13]},
        {"text": [], "answer_start": []},
    ]
    assert found["id"] == ["1", "2"]


def test_a_key_that_only_some_json_rows_have_is_none_in_other_rows(tmp_path: Path) -> None:
    table = read(str(write(tmp_path, "x.jsonl", '{"a": 1}\n{"a": 2, "b": 3}\n')))
    assert columns(table) == {"a": [1, 2], "b": [None, 3]}


def test_first_cuts_every_column(tmp_path: Path) -> None:
    lines = read(str(write(tmp_path, "x.txt", "a\n\nb\nc\n")))
    assert columns(lines.first(2)) == {"text": ["a", "b"]}
    assert list(lines.first(2).records("text")) == [("a",), ("b",)]
    assert lines.first(5).rows == 3
    table = DataTable("t", {"a": [1, 2, 3], "b": [4, 5, 6]})
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
        ("x.csv", "text,label\nb,a,1\nb,a,2\n", "line 2: found 3 columns, expected 2"),
        ("x.csv", 'text,label\n"a,1\n', "invalid csv"),
        ("x.csv", 'text,label\n"a"b,1\n', "line 2: invalid csv"),
        ("x.csv", "text,text\na,1\n", "names a column twice"),
        ("x.json", '[{"text": "a"},\n {"text": ]', "line 2 column 11: invalid JSON"),
        ("x.jsonl", '{"text": "a"}\n{"text"\n', "line 2 column"),
        ("x.json", "3", "expected a list of objects"),
        ("x.json", "[[1]]", "row 1: found list, expected an object"),
        ("x.json", '{"data": [{"paragraphs": [{"qas": [{"id": "1"}]}]}]}', "expected SQuAD's format"),
        ("x.csv.gz", "text,label\na,1\na,b,2\n", "line 3: found 3 columns, expected 2"),
        ("x.doc", "a", "suffix '.doc' is unknown"),
        ("x.v2.gz", "a", "suffix '.v2.gz' is unknown, expected .csv, "),
        ("x.parquet.gz", "a", "suffix '.parquet.gz' is unknown"),
        ("x.jsonl", '{"text": "a"}\n\n{"text": ["\\uD83d"]}\n', r"row 2: found \ud83d, half of a character"),
        ("x.json", '[{"text": "a"}, {"text": "\\ude00"}]', r"row 2: found \ude00, half of a character"),
        (
            "x.jsonl",
            '{"text": ' + "[" * 100_000 + "\n",
            "line 1: found lists or objects that are nested too deeply",
        ),
        ("x.json", "[" * 100_000, "found lists or objects that are nested too deeply"),
    ],
)
def test_a_bad_file_is_refused_in_one_line_that_names_it(
    tmp_path: Path, name: str, content: str, expected: str
) -> None:
    path = write(tmp_path, name, content)
    with pytest.raises(UsageError) as raised:
        read(str(path))
    assert expected in str(raised.value)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["x.json", "x.jsonl"])
def test_a_character_of_two_halves_is_read(tmp_path: Path, name: str) -> None:
    found = read(str(write(tmp_path, name, '{"text": "\\ud83d\\ude00"}')))
    assert list(found.columns["text"]) == ["😀"]


def test_bytes_that_are_not_utf8_are_refused_with_their_position(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes("text,label\ncafé,1\n".encode("latin-1"))
    with pytest.raises(UsageError, match="byte 14 is not UTF-8"):
        read(str(path))
    content = b'{"a":1}\n' * 5_000 + b"\xe9\n"  # behind the first block that Python decodes
    for name in ("x.csv", "x.jsonl", "x.json", "x.jsonl.gz"):
        path = tmp_path / name
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
        with pytest.raises(UsageError, match="byte 40000 is not UTF-8"):
            read(str(path))


@pytest.mark.parametrize(
    "damage",
    [lambda whole: whole[:-9], lambda whole: whole[:20] + b"\0\0\0" + whole[23:], lambda _whole: b"a,b\n"],
    ids=["cut", "changed", "not compressed"],
)
def test_a_damaged_compressed_file_is_refused_in_one_line(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "rows.csv.gz"
    rows = b"".join(b"%d,%d\n" % (row, row * row) for row in range(999))
    path.write_bytes(damage(gzip.compress(b"a,b\n" + rows)))
    with pytest.raises(UsageError, match=r"^data file '.*rows.csv.gz': invalid gzip, .+: copy the file again$"):
        read(str(path))


@pytest.mark.parametrize("name", ["x.csv", "x.json", "x.jsonl", "x.jsonl.gz"])
def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))  # even root cannot open it
        with pytest.raises(UsageError, match="cannot be read by user"):
            read(str(path))
    with pytest.raises(UsageError, match="cannot be read by user"):
        read(f"{'x' * 300}/{name}")


def test_damaged_parquet_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(_path: Path) -> NoReturn:
        raise OSError("Couldn't deserialize thrift: 5 bytes\nInvalid page header")  # as pyarrow does

    pyarrow = SimpleNamespace(ArrowException=ValueError, parquet=SimpleNamespace(ParquetFile=damaged))
    monkeypatch.setitem(sys.modules, "pyarrow", pyarrow)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", pyarrow.parquet)
    file = tmp_path / "rows.parquet"
    file.touch()
    with pytest.raises(UsageError, match=r"rows.parquet': invalid parquet, Couldn't deserialize thrift: 5 bytes$"):
        read(str(file))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        read(str(tmp_path / "none.csv"))
    with pytest.raises(UsageError, match="no file matches"):
        read(str(tmp_path / "*.csv"))
    (tmp_path / "_SUCCESS").write_text("")
    with pytest.raises(UsageError, match="has no data file"):
        read(str(tmp_path))


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "device"])
def test_a_file_without_an_end_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "rows.csv")
    with pytest.raises(UsageError, match=r"rows\.csv' is no regular file"):
        read(str(tmp_path / "rows.csv"))


@pytest.mark.parametrize("pattern", ["", "/part-*.jsonl", "/**/*.jsonl"])
def test_the_files_of_a_folder_or_pattern_are_one_table_in_the_order_of_their_names(
    tmp_path: Path, pattern: str
) -> None:
    for name, content in (("part-1", '{"a": 3, "b": 4}\n'), ("part-0", '{"a": 1}\n{"a": 2}\n'), ("part-2", "")):
        write(tmp_path, f"{name}.jsonl", content)
    for name in ("_SUCCESS", ".part-1.jsonl.crc", "README.md"):
        write(tmp_path, name, "x")
    table = read(f"{tmp_path}{pattern}")
    assert columns(table) == {"a": [1, 2, 3], "b": [None, None, 4]}
    assert [table.where(row) for row in (1, 2, 3)] == [
        "part-0.jsonl row 1",
        "part-0.jsonl row 2",
        "part-1.jsonl row 1",
    ]


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "a.csv", "text,label\na,1\n")
    write(tmp_path, "b.csv", "text,topic\na,1\n")
    with pytest.raises(UsageError, match=r"b\.csv' has the columns .*, expected \['text', 'label'\]"):
        read(str(tmp_path))
    write(tmp_path, "c.txt", "a\n")
    with pytest.raises(UsageError, match=r"has files of the formats \.csv, \.txt, expected one"):
        read(str(tmp_path))


@pytest.mark.parametrize("first", ["", "text,label\n"], ids=["empty", "header only"])
def test_a_first_file_without_rows_has_no_columns_to_compare(tmp_path: Path, first: str) -> None:
    write(tmp_path, "part-0.csv", first)
    write(tmp_path, "part-1.csv", "text,label\na,1\n")
    assert columns(read(str(tmp_path))) == {"text": ["a"], "label": ["1"]}


def test_a_file_is_read_row_by_row(tmp_path: Path) -> None:
    line = f'{{"text": "{"x" * 1000}"}}\n'
    path = write(tmp_path, "x.jsonl", line * 20_000)
    tracemalloc.start()
    try:
        table = read(str(path))
        assert sum(len(text) for text in table.columns["text"]) == 20_000_000
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
