"""job.json of one job is damaged: one line, and the other jobs are found."""

import os
from pathlib import Path

import pytest

from cpu_train_stack.cli.errors import UsageError
from tooling.cli import tasks_clusters
from tooling.hosts import record

GOOD = '{"name": "good", "hosts": [{"name": "a"}], "containers": ["c"], "launcher": "torchrun", "detached": true}'
BAD = GOOD.replace("good", "bad")
_DAMAGED = {
    "null": "null",
    "number": "3",
    "list": "[]",
    "cut": GOOD[:30],
    "deep": "[" * 200_000,
    "binary": "\udcff",
    "another job": GOOD,
    "no host": BAD.replace('[{"name": "a"}]', "[]"),
    "a host": BAD.replace('[{"name": "a"}]', "[3]"),
    "an exit code": BAD.replace("true", 'true, "exit_code": "x"'),
}


@pytest.mark.timeout(60)
def test_a_file_without_an_end_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "JOBS", tmp_path)
    for name in ("endless", "fifo"):
        (tmp_path / name).mkdir()
    (tmp_path / "endless" / "job.json").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "fifo" / "job.json")
    for name in ("endless", "fifo"):
        with pytest.raises(UsageError, match=f"{name}/job.json is not a file written by .*: delete it"):
            record.read(name)


@pytest.mark.parametrize("text", [*_DAMAGED.values(), None], ids=[*_DAMAGED, "folder"])
def test_a_damaged_file_is_one_line_and_hides_no_other_job(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(record, "JOBS", tmp_path)
    bad, good = tmp_path / "bad" / "job.json", tmp_path / "good" / "job.json"
    bad.parent.mkdir()
    good.parent.mkdir()
    good.write_text(GOOD)
    if text is None:
        bad.mkdir()
    else:
        bad.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UsageError, match=r"bad/job.json is not a file written by .*: delete it") as caught:
        tasks_clusters.find("bad")
    assert "\n" not in str(caught.value)
    found = tasks_clusters.find(None)
    assert found is not None
    assert found.name == "good"
    assert len(capsys.readouterr().err.splitlines()) == 1
