"""result.json of a job that may be that of a foreign image."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cpu_train_stack.cli.errors import UsageError
from tooling.cluster import result


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["missing", "fifo", "link", "list", "text", "deep"])
def test_what_is_no_document_is_one_line(kind: str, tmp_path: Path) -> None:
    path = tmp_path / result.NAME
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        (tmp_path / "secret").write_text('{"a": 1}')
        path.symlink_to("secret")
    elif kind != "missing":
        path.write_text({"list": "[]", "text": "x\ny", "deep": "[" * 200_000}[kind])
    with pytest.raises(UsageError, match=rf"^{path} has other content than this version of .*: use") as caught:
        result.read(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_value_that_is_missing_or_wrong_is_one_line(tmp_path: Path) -> None:
    (tmp_path / result.NAME).write_text('{"seconds": 3}')
    found = result.read(tmp_path)
    uses: list[Callable[[], object]] = [
        lambda: found["rows"],
        lambda: found["seconds"]["train"],
        lambda: 1 / (found["seconds"] - 3),
    ]
    for use in uses:
        with pytest.raises(UsageError, match=r"result\.json has other content than"), result.understood(tmp_path):
            use()
