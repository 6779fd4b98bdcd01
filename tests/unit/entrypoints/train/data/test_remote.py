"""Data files at URLs."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.data import remote, tables

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def bucket() -> str:
    """A folder at a URL, with data in two folders of it."""
    url = "memory://bucket/rows"
    for name, content in (("a/part.jsonl", '{"x": 1}\n'), ("b/part.jsonl", '{"x": 2}\n{"x": 3}\n')):
        fsspec.filesystem("memory").pipe(f"{url}/{name}", content.encode())
    for name in ("_SUCCESS", ".part.jsonl", "README.md"):
        fsspec.filesystem("memory").pipe(f"{url}/b/{name}", b"x")
    return url


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("a/part.jsonl", [1]),
        ("b", [2, 3]),
        ("b/", [2, 3]),
        ("*/part.jsonl", [1, 2, 3]),
        ("**/p*.jsonl", [1, 2, 3]),
    ],
    ids=["file", "folder", "folder with slash", "pattern", "pattern of folders"],
)
def test_the_files_at_a_url_are_read_as_local_files_are(bucket: str, path: str, values: list[int]) -> None:
    table = tables.read(f"{bucket}/{path}")
    assert list(table.columns["x"]) == values
    assert list(table.columns["x"]) == values  # rows are read again
    assert table.where(1) == "part.jsonl row 1"


def test_the_query_of_a_signed_address_does_not_belong_to_the_name_of_its_file() -> None:
    assert remote.path_of("https://host/rows/part.csv?Signature=a/b.txt").name == "part.csv"


def test_messages_leave_out_the_secrets_of_an_address(bucket: str) -> None:
    for address in ("http://me:secret@127.0.0.1:9/x.csv?Signature=secret", f"{bucket}/x.csv?Signature=secret"):
        with pytest.raises(UsageError, match=r"/x\.csv\?<hidden>' cannot be read") as caught:
            tables.read(address)
        assert "secret" not in str(caught.value)


def test_messages_about_the_content_of_a_file_name_its_address(bucket: str) -> None:
    folder = fsspec.filesystem("memory")
    folder.pipe(f"{bucket}/broken/x.jsonl", b'{"x": 1}\n{"x":\n')
    folder.pipe(f"{bucket}/mixed/1.csv", b"x\n1\n")
    folder.pipe(f"{bucket}/mixed/2.csv", b"y\n1\n")
    for path in ("broken/x.jsonl", "broken", "broken/*.jsonl"):
        with pytest.raises(UsageError, match=r"data file 'memory://+bucket/rows/broken/x\.jsonl' line 2"):
            tables.read(f"{bucket}/{path}")
    with pytest.raises(UsageError, match=r"'memory://+bucket/rows/mixed/2\.csv' has .* as in 'memory://+bucket/"):
        tables.read(f"{bucket}/mixed")


def test_a_url_without_data_is_refused(bucket: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no file matches 'memory://bucket/rows/\*\.csv': check the pattern$"):
        tables.read(f"{bucket}/*.csv")
    with pytest.raises(UsageError, match="has no data file"):
        tables.read(bucket)
    with pytest.raises(
        UsageError, match=r"none\.csv' cannot be read \(FileNotFoundError: .*\): check the address"
    ):
        tables.read(f"file://{tmp_path}/none.csv")
    with pytest.raises(UsageError, match="Protocol not known: nowhere"):
        tables.read("nowhere://bucket/x.csv")


def test_a_missing_package_is_named_with_the_command_that_adds_it() -> None:
    with pytest.raises(UsageError, match=r"cannot be read \(Install s3fs .*\./inv build --with s3fs$"):
        tables.read("s3://bucket/x.csv")
