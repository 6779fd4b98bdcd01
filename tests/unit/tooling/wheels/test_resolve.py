"""What pip finds for a row: its report, conflicts, and packages that pip would build."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cpu_train_stack.cli.errors import UsageError
from tests.unit.tooling.tiny import make_pin, make_simple_index, make_wheel
from tooling.basis.paths import ROOT
from tooling.wheels import pip, resolve
from tooling.wheels.resolve import LockedWheel

SHA256 = "a" * 64


def test_the_report_of_pip_is_read_as_utf8_in_every_locale(tmp_path: Path) -> None:
    """pip writes authors' names as UTF-8, which is not the encoding of every locale."""
    report = tmp_path / "report.json"
    wheel = {
        "metadata": {"name": "tiny-a", "version": "1.0", "author": "José"},
        "download_info": {"archive_info": {"hashes": {"sha256": SHA256}}},
    }
    report.write_text(json.dumps({"install": [wheel]}, ensure_ascii=False), encoding="utf-8")
    code = f"import pathlib; from tooling.wheels.resolve import *; print(from_report(pathlib.Path('{report}')))"
    ascii_locale = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **ascii_locale},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout == f"{[LockedWheel('tiny-a', '1.0', SHA256)]}\n", done.stderr


@pytest.mark.parametrize("constraint", ["", "tiny-a<1"], ids=["", "PIP_CONSTRAINT"])
def test_a_conflict_names_both_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, constraint: str) -> None:
    links, constraints = tmp_path / "links", tmp_path / "constraints.txt"
    make_wheel(links, "tiny_a", "1.0")
    make_wheel(links, "new", "1.0", requires=[] if constraint else ["tiny-a>=2"])
    constraints.write_text(constraint)
    monkeypatch.setattr(resolve, "CACHE", tmp_path)
    for name, value in (("NO_INDEX", "1"), ("FIND_LINKS", links), ("CONSTRAINT", constraints)):
        monkeypatch.setenv(f"PIP_{name}", str(value))
    with pytest.raises(UsageError) as caught:
        resolve.resolve(make_pin({"tiny-a": "1.0", "new": "1.0"}))
    other = "The user requested (constraint) tiny-a<1" if constraint else "new 1.0 depends on tiny-a>=2"
    assert str(caught.value).startswith("pin tiny cannot be resolved: ")
    assert {other, "The user requested tiny-a==1.0"} == set(str(caught.value).partition(": ")[2].split("; "))


def test_a_conflict_of_a_package_with_its_own_index_is_not_reported_as_a_missing_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = make_wheel(tmp_path / "made", "torch", "1.0")
    other = make_wheel(tmp_path / "made", "new", "1.0", requires=["torch>=2"])
    monkeypatch.setattr(resolve, "CACHE", tmp_path)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", make_simple_index(tmp_path / "host", [torch, other]))
    pin = make_pin({"torch": "1.0", "new": "1.0"}, make_simple_index(tmp_path / "own", [torch]))
    with pytest.raises(UsageError, match=r"new 1\.0 depends on torch>=2"):
        resolve.resolve(pin)
    assert "do not have torch" not in capsys.readouterr().err


def test_all_sides_of_a_conflict_are_named() -> None:
    """The last of pip's lines may be the only one with an upper bound."""
    lines = ["a 1 depends on hub>=1", "b 1 depends on hub>=2", "c 1 depends on hub>=3", "d 1 depends on hub<3"]
    output = "The conflict is caused by:\n" + "".join(f"    {line}\n" for line in lines)
    failed = pip.failure("x", subprocess.CompletedProcess([], 1, output))
    assert str(failed) == f"x: {'; '.join(lines)}"
