"""For random arguments, `./inv` runs the task, or prints one line at once and exits with code 2."""

import functools
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from pathlib import Path

import pytest
from invoke.collection import Collection

import tasks
from cpu_train_stack.cli.errors import UsageError
from tests import fuzzing
from tests.unit.tooling.cli.program import run
from tests.unit.tooling.hosts.host_jobs import job
from tests.unit.tooling.image.examples import LOCK
from tests.unit.tooling.image.test_given import ID, archive
from tooling.cli import options
from tooling.cli.options import TaskSignature
from tooling.cluster import run as clusters
from tooling.engine.ssh import Done, Remote
from tooling.hosts import connections, container, record
from tooling.image import given, lock
from tooling.pins import osv


def _tasks() -> list[tuple[list[str], list[str]]]:
    """The words that name each task, and its flags."""
    members = [member for section in tasks.SECTIONS.values() for member in section]
    found = [([str(member.name)], member) for member in members if isinstance(member, TaskSignature)]
    for group in members:
        if isinstance(group, Collection):
            found += [([str(group.name), name], group.tasks[name]) for name in group.task_names]
    return [(names, [flag for argument in one.get_arguments() for flag in argument.names]) for names, one in found]


_TASKS = _tasks()


def _words(chance: random.Random) -> list[str]:
    names, flags = chance.choice(_TASKS)
    return fuzzing.words(chance, [names], [*flags, "no-such", "help"])


def _without_the_task(target: Callable[..., object], values: Mapping[str, object]) -> object:
    """Only the options of a task are made."""
    if not is_dataclass(target):
        target = functools.wraps(target)(lambda **_: None)
    return _CALL(target, values)


_CALL = options._call


@pytest.mark.timeout(600)
def test_no_arguments_end_in_a_traceback_or_take_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(options, "_call", _without_the_task)
    monkeypatch.chdir(tmp_path)
    for seed in fuzzing.cases(720):
        words = _words(random.Random(seed))
        with fuzzing.one_case(seed, words):
            code, _, err = run(tasks.SECTIONS, words, capsys)
            assert (code, err.count("\n")) in ((0, 0), (2, 1)), err
    assert [*tmp_path.iterdir()] == []


class AnsweringHost(Remote):
    """A host that answers with the content of a file."""

    def __init__(self, answer: Path) -> None:
        self.name, self._answer = "alpha", answer

    def run(self, command: str, stdin: bytes = b"", limit: float = 60.0) -> Done:
        return Done(0, self._answer.read_bytes().decode(errors="replace"), "")


def _state(path: Path) -> object:
    return connections.each([AnsweringHost(path)], lambda host: container.state(host, "one", 0.0), ["alpha"])


VULNERABILITY = {
    "id": "GHSA-1",
    "aliases": ["CVE-1"],
    "summary": "text",
    "affected": [
        {
            "package": {"ecosystem": "PyPI", "name": "torch"},
            "versions": ["1.0", "2.0"],
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "2.1"}]}],
        }
    ],
}
STATE = {"Status": "exited", "ExitCode": 1, "OOMKilled": False, "Error": "", "FinishedAt": ""}
SERVICE = {"volumes": [{"source": "/data", "target": "/data"}, {"source": "/tmp/out", "target": "/output"}]}


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[Path, Callable[[Path], object]]:
    """Files that ./inv reads, and what reads them."""
    monkeypatch.setattr(record, "JOBS", tmp_path / "jobs")
    monkeypatch.setattr(clusters, "CLUSTERS", tmp_path / "clusters")
    record.write(record.of(job(), detached=True))
    lock.write(LOCK, tmp_path / "image.lock.json")
    archive(tmp_path / "stack.tar", f"{ID}.json", {"manifests": [{"digest": f"sha256:{ID}"}]})
    (tmp_path / "clusters/one").mkdir(parents=True)
    for name, document in (
        ("osv", VULNERABILITY),
        ("state", STATE),
        ("clusters/one/compose", {"services": {"a": SERVICE}}),
    ):
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    (tmp_path / "clusters/one/compose.json").rename(tmp_path / "clusters/one/compose.yaml")
    return {
        tmp_path / "jobs/one/job.json": lambda _: record.read("one"),
        tmp_path / "clusters/one/compose.yaml": lambda _: clusters.output_of("one"),
        tmp_path / "image.lock.json": lock.read,
        tmp_path / "stack.tar": lambda path: given.name(str(path)),
        tmp_path / "osv.json": lambda path: osv.find({"torch": "2.0"}, filter(None, [osv._read_file(path)])),
        tmp_path / "state.json": _state,
    }


def _error(reader: Callable[[Path], object], path: Path) -> str:
    try:
        reader(path)
    except UsageError as error:
        return str(error)
    return ""


@pytest.mark.timeout(600)
def test_no_content_of_a_file_or_answer_ends_in_a_traceback(read: Mapping[Path, Callable[[Path], object]]) -> None:
    contents = {path: path.read_bytes() for path in read}
    for path, reader in read.items():
        assert reader(path), path
    for seed in fuzzing.cases(100):
        chance = random.Random(seed)
        path = chance.choice([*read])
        path.write_bytes(fuzzing.mutated(contents[path], chance))
        with fuzzing.one_case(seed, path.name, path.read_bytes()[:2000]):
            assert "\n" not in _error(read[path], path)
        path.write_bytes(contents[path])
