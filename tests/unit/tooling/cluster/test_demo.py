"""The demo's data and the check of its results."""

import csv
import io
import json
import re
import shutil
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from invoke.exceptions import Exit

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import locked
from tooling.cluster import demo, demo_answers, demo_chats, demo_data, pretrained
from tooling.cluster import run as cluster
from tooling.cluster.compose import ClusterSpec
from tooling.cluster.run import Outcome
from tooling.engine import api
from tooling.engine.api import Engine
from tooling.image.build import Image
from tooling.image.choice import Choice
from tooling.pins import parse

RESULT: dict[str, Any] = {
    "world_size": 2,
    "backend": "gloo",
    "bf16": True,
    "train_loss_first": 2.0,
    "train_loss_last": 0.4,
    "metric_name": "accuracy",
    "metric_before": 0.13,
    "metric_after": 0.9,
}


# Every Python from 3.11 on has these.
PART = ("_pydecimal.py", "asyncio", "email", "importlib", "logging", "multiprocessing", "unittest", "xml")


def test_a_model_that_learned_passes() -> None:
    assert demo.check(RESULT, world_size=2, backend="gloo") == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"metric_after": 0.4}, "accuracy went from 0.130 to 0.400"),
        ({"train_loss_last": 2.1}, "the loss went from 2.000 to 2.100"),
        ({"world_size": 1}, "1 ranks trained together, expected 2"),
        ({"backend": "ccl"}, "the process group was ccl, expected gloo"),
        ({"bf16": False}, "the training did not run in bf16"),
        ({"metric_after": float("nan")}, "accuracy went"),
    ],
    ids=["did not learn", "loss rose", "did not distribute", "another backend", "fp32", "not a number"],
)
def test_a_result_that_is_not_as_expected_fails(changes: dict[str, Any], problem: str) -> None:
    failures = demo.check({**RESULT, **changes}, world_size=2, backend="gloo")
    assert any(text.startswith(problem) for text in failures), failures


@pytest.mark.parametrize(
    ("rate", "expected"), [(12.34, "12.3 samples/s"), (None, "too few steps")], ids=["steady", "one step"]
)
def test_the_summary_shows_the_speed_if_it_was_measured(
    capsys: pytest.CaptureFixture[str], rate: float | None, expected: str
) -> None:
    seconds = {"build": 0.0, "start": 1.0, "train": 2.0}
    result = {**RESULT, "pin": "2.13", "image": "sha256:0123", "nodes": 2, "seconds": seconds}
    demo.summarize({**result, "train_samples_per_second": rate}, Path("result.json"), passed=True)
    assert expected in capsys.readouterr().out


@pytest.mark.parametrize(
    ("nodes", "backend", "launcher", "message"),
    [
        (3, "ccl", "torchrun", "3 ranks cannot share a batch of 32: use one of 1, 2, 4, 8, 16, 32 ranks"),
        (0, "ccl", "torchrun", "0 ranks cannot share a batch of 32"),
        (2, "ccl", "mpi", "--launcher is 'mpi', expected torchrun or mpirun"),
        (2, "nccl", "torchrun", "--backend is 'nccl', expected ccl or gloo"),
    ],
    ids=["3 ranks", "no node", "no such launcher", "no such backend"],
)
def test_bad_options_are_refused_before_an_engine_is_needed(
    nodes: int, backend: str, launcher: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "ensure", lambda: pytest.fail("the engine was asked for"))
    with pytest.raises(UsageError, match=message):
        demo.demo(Choice(), nodes, 1, backend, launcher)


RUN = cluster.run


@dataclass
class FakeClusters:
    """Replaces the clusters of a demo: they fail, or end with `result` as what they have written."""

    folder: Path
    result: str = ""
    started: list[ClusterSpec] = field(default_factory=list)

    def run(self, spec: ClusterSpec, *_: object, prepare: Callable[[], object] = lambda: None) -> Outcome:
        self.started.append(spec)
        prepare()
        (self.folder / "output").mkdir(exist_ok=True)
        (self.folder / "output/result.json").write_text(self.result)
        return Outcome(0 if self.result else 7)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeClusters:
    found = FakeClusters(tmp_path)
    image = Image("cpu-train-stack:2.13", "sha256:1", 0, built=False, seconds=0.0)
    monkeypatch.setattr(Choice, "ensure", lambda _choice: (Engine("unix:///sock", 2), image))
    monkeypatch.setattr(cluster, "run", found.run)
    for task in demo.FOLDERS:
        monkeypatch.setitem(demo.FOLDERS, task, tmp_path)
    (tmp_path / "data").mkdir()
    for model in ("minilm", "smollm2"):
        monkeypatch.setattr(pretrained, model, lambda: tmp_path)
    monkeypatch.setattr(demo_data, "write", lambda _folder: (Path("a.csv"), Path("b.csv")))
    return found


@pytest.mark.parametrize(
    ("task", "held_out", "first"),
    [
        (demo.CLASSIFICATION, [], "demo"),
        (demo.SFT, [], "demo"),
        (demo.SFT, [("a message", "{}")], "demo-answers"),
    ],
    ids=["classifier", "decoder", "answers"],
)
def test_the_image_runs_by_its_id_because_a_build_moves_its_tag(
    task: str, held_out: list[demo_chats.Chat], first: str, runs: FakeClusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_chats, "write", lambda _folder: (Path("a.jsonl"), held_out))
    with pytest.raises(Exit) as failed:
        demo.demo(Choice(), 2, 1, "ccl", "torchrun", task)
    assert failed.value.code == 7
    assert [(spec.name, spec.image) for spec in runs.started] == [(first, "sha256:1")]


@pytest.mark.parametrize("line", ["", "{", '{"x": 1}', '{"completion": "a"}\nnode-0 | {"completion": "b"}'])
def test_answers_that_the_images_generate_does_not_print_are_one_line(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_spec: ClusterSpec, _engine: Engine, shown: io.BytesIO) -> Outcome:
        shown.write(f"node-0 | {line}\n".encode())
        return Outcome(0)

    monkeypatch.setattr(cluster, "run", run)
    with pytest.raises(UsageError, match=r"^generate printed \d answers, expected 1"):
        demo_answers.ask("sha256:1", Path("model"), ["a question"], Engine("unix:///sock", 2))


@pytest.mark.parametrize("text", ["[]", "{}", '{"seconds": {"train": "x"}, "train_started_at": 1}'])
def test_a_result_that_the_images_train_does_not_write_is_one_line(text: str, runs: FakeClusters) -> None:
    runs.result = text
    with pytest.raises(UsageError, match=r"result\.json has other content than this version"):
        demo.demo(Choice(), 2, 1, "ccl", "torchrun")


def test_a_refused_demo_keeps_the_files_of_the_one_that_runs(
    runs: FakeClusters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "run", RUN)
    monkeypatch.setattr(cluster, "CLUSTERS", tmp_path)
    written = [tmp_path / "result.json", tmp_path / "output/model.safetensors"]
    for file in written:
        file.parent.mkdir(exist_ok=True)
        file.touch()
    with locked(tmp_path / ".demo.lock", waiting=None), pytest.raises(UsageError, match="demo is running"):
        demo.demo(Choice(), 2, 1, "ccl", "torchrun")
    assert all(file.exists() for file in written)
    assert runs.started == []


@pytest.mark.parametrize(
    ("row", "task", "message"),
    [
        ("2.13", "chats", "--task is 'chats', expected classification or sft"),
        ("2.1", "sft", "--task sft needs transformers .* and pin 2.1 has 4.35.2"),
    ],
    ids=["no such task", "no train"],
)
def test_a_task_that_the_row_cannot_train_is_refused(row: str, task: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        demo.check_task(task, parse.load().pin(row))
    demo.check_task(demo.SFT, parse.load().pin("2.4"))
    demo.check_task(demo.CLASSIFICATION, parse.load().pin("1.10"))


@pytest.mark.parametrize(
    ("row", "command"), [("2.13", "train"), ("2.4", "train"), ("2.1", "run"), ("2.0", "run")], ids=str
)
def test_a_row_whose_transformers_is_too_old_for_train_runs_the_script(row: str, command: str) -> None:
    assert demo.command(parse.load().pin(row), 16, "ccl", "a.csv", "b.csv")[:2] == (
        (command, "--model_name_or_path=/model") if command == "train" else (command, "--backend=ccl")
    )


def test_the_script_takes_every_option_that_the_demo_gives() -> None:
    options = {word.split("=")[0] for word in demo.script_command(16, "ccl", "a.csv", "b.csv")[3:]}
    declared = demo.SCRIPT.read_text(encoding="utf-8")
    assert options > {"--epochs", "--learning-rate", "--batch"}
    for option in options - {"--model", "--train", "--test", "--output"}:
        assert f'add_argument("{option}"' in declared


def rows(path: Path) -> list[tuple[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return [(row["text"], row["label"]) for row in csv.DictReader(stream)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The data from a part of the standard library, which is parsed in a tenth of the time.

    The complete library has at least as many rows, because the modules with the most docstrings are used.
    """
    library = tmp_path_factory.mktemp("library")
    for name in PART:
        source = Path(sysconfig.get_path("stdlib")) / name
        if source.is_dir():
            shutil.copytree(source, library / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, library)
    train, test = demo_data.write(tmp_path_factory.mktemp("data"), library)
    return rows(train), rows(test)


def test_the_data_is_enough_to_learn_from(data: tuple[list[tuple[str, str]], list[tuple[str, str]]]) -> None:
    train, test = data
    assert len({label for _, label in train}) == demo_data.LABELS
    assert {label for _, label in test} == {label for _, label in train}
    assert len(train) > 800
    assert len(test) > 200
    assert all(len(text) >= demo_data.MIN_CHARACTERS for text, _ in train)


def test_no_example_is_in_both_files(data: tuple[list[tuple[str, str]], list[tuple[str, str]]]) -> None:
    train, test = data
    assert not set(train) & set(test)


def test_the_data_is_the_same_each_time(tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    for label in "abcdefghij":
        functions = (
            f"def f{n}():\n    '''Function {n} of {label} does something or other.'''\n" for n in range(9)
        )
        (library / f"{label}.py").write_text("\n".join(functions))
    first = demo_data.write(tmp_path / "1", library)
    second = demo_data.write(tmp_path / "2", library)
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert len(rows(first[0])) + len(rows(first[1])) == 9 * demo_data.LABELS


def test_broken_sources_and_the_librarys_tests_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def (:")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "x.py").write_text("'''A docstring that is long enough to be taken otherwise.'''")
    (tmp_path / "good.py").write_text("'''A docstring that is long enough to be taken in any case.'''")
    assert [row.label for row in demo_data.docstrings(tmp_path)] == ["good"]


def words_of(message: str) -> set[str]:
    return set(re.findall(r"\w+", message))


def test_the_held_out_messages_have_names_and_things_that_no_chat_of_the_training_has(tmp_path: Path) -> None:
    path, held_out = demo_chats.write(tmp_path)
    chats = [json.loads(line)["messages"] for line in path.read_text().splitlines()]
    assert len(chats) == demo_chats.TRAINING
    assert len({question for question, _ in held_out}) == demo_chats.HELD_OUT
    trained = words_of(" ".join(question["content"] for question, _ in chats))
    for question, answer in held_out:
        order = json.loads(answer)
        color, thing = order["item"].split()
        assert not {order["customer"], order["city"], thing} & trained
        assert {order["customer"], order["city"], color, thing} <= words_of(question)
        assert demo_chats.NUMBERS[order["count"]] in words_of(question)
    assert demo_chats.write(tmp_path / "again")[0].read_bytes() == path.read_bytes()


def test_an_answer_is_right_only_if_it_is_the_expected_json_and_nothing_else() -> None:
    expected = '{"city": "Oslo", "count": 2}'
    assert demo_answers.is_right('{"count": 2, "city": "Oslo"}', expected)
    for wrong in (
        '{"city": "Oslo", "count": 3}',
        f"{expected} I hope this helps!",
        "Sure!",
        "",
        '{"city": "Oslo"',
    ):
        assert not demo_answers.is_right(wrong, expected)


def test_the_share_of_right_answers_is_the_metric(capsys: pytest.CaptureFixture[str]) -> None:
    chats = [(f"message {number}", json.dumps({"number": number})) for number in range(4)]
    found = demo_answers.compare(chats, ["[red]Hi", "", "", chats[3][1]], [answer for _, answer in chats])
    assert (found["metric_name"], found["metric_before"], found["metric_after"]) == ("right_answers", 0.25, 1.0)
    assert demo.check({**RESULT, **found}, world_size=2, backend="gloo") == []
    demo_answers.show(found["answers"])
    printed = capsys.readouterr().out
    assert "message 3" in printed
    assert "[red]Hi" in printed
    assert (printed.count("wrong"), printed.count("right")) == (3, 5)
