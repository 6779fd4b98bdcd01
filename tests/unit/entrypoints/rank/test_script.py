"""A script that cannot be Python is refused before the ranks meet."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.rank import script


@pytest.mark.parametrize(
    ("content", "line"), [(b"\0", 1), (b"import os\nprint(1)\n\0\0", 3), (b"x = '\0'\n", 1), (bytes(4096), 1)]
)
def test_a_script_with_a_zero_byte_is_one_line(tmp_path: Path, content: bytes, line: int) -> None:
    (tmp_path / "train.py").write_bytes(content)
    with pytest.raises(UsageError, match=f"zero byte in line {line}, "):
        script.prepare([str(tmp_path / "train.py")])


def test_other_scripts_and_their_arguments_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('\\0')\n")
    words = (str(tmp_path / "train.py"), "--", "-m", "--quiet", "--", "")
    assert script.prepare(words).words == words
    assert script.prepare(["--", *words]).words == words
    (tmp_path / "program").write_bytes(b"PK\0")  # a zip file, which Python runs
    assert script.prepare([str(tmp_path / "program")]).words == (str(tmp_path / "program"),)


def test_a_name_that_no_file_can_have_is_not_a_file() -> None:
    with pytest.raises(UsageError, match="is not a file"):
        script.prepare(["x" * 5000])
