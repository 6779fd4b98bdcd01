"""Options that follow from type hints, groups of tasks, sections, and help."""

import inspect
import itertools
from dataclasses import dataclass, is_dataclass
from typing import Annotated, get_origin, get_type_hints

import pytest
from invoke.collection import Collection

import tasks
from cpu_train_stack.cli.options import NO_DASH
from tests.unit.tooling.cli.program import run
from tooling.cli import options
from tooling.cli.parser import Member


@options.task
def speed(pin: Annotated[str, "a pin"] = "2.13") -> None:
    """Measure the speed."""
    print(f"speed of {pin}")


@options.task
def up(
    command: tuple[str, ...],
    nodes: Annotated[int, "containers"] = 2,
    name: Annotated[str | None, "a name"] = None,
    env: Annotated[tuple[str, ...], "a variable"] = (),
) -> None:
    """Run a command."""
    print(nodes, name, env, command)


@options.task
def build() -> None:
    """Build something."""


@dataclass(frozen=True)
class Size:
    """A request: `length` is an option, `unit` is not."""

    length: Annotated[int | None, "the length"] = None
    unit: str = "mm"


@options.task
def launch(size: Size, command: tuple[str, ...] = ()) -> None:
    """Launch."""
    print(size.length, size.unit, command)


def measure(name: str) -> Collection:
    group = Collection(name, speed, launch)
    group.__doc__ = "Measure things."
    return group


SECTIONS: dict[str, list[Member]] = {
    "First": [up, launch],
    "Second": [measure("measure"), build],
}


def test_a_task_of_a_group_runs(capsys: pytest.CaptureFixture[str]) -> None:
    for name in (["measure", "speed"], ["measure.speed"]):
        assert run(SECTIONS, [*name, "--pin=3"], capsys) == (0, "speed of 3\n", "")


def test_a_dataclass_declares_the_options_of_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(SECTIONS, ["launch", "--length=3", "--", "a b"], capsys) == (0, "3 mm ('a b',)\n", "")
    assert run(SECTIONS, ["launch"], capsys) == (0, "None mm ()\n", "")
    code, _out, err = run(SECTIONS, ["launch", "--unit=cm"], capsys)
    assert (code, err.startswith("launch has no option '--unit'")) == (2, True)
    assert run(SECTIONS, ["launch", "--length=x"], capsys)[2] == "--length expects an integer, found 'x'\n"


def test_an_option_may_be_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    typed = ["up", "--env", "A=1", "--env", "B=2", "--", "train", "--x", "--"]
    assert run(SECTIONS, typed, capsys)[1] == "2 None ('A=1', 'B=2') ('train', '--x', '--')\n"


def test_the_tasks_are_listed_by_section_in_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    expected = (
        "Usage: ./inv TASK [options]; ./inv TASK --help shows the options of a task\n\n"
        "First:\n"
        "  up       Run a command.\n"
        "  launch   Launch.\n\n"
        "Second:\n"
        "  measure  Measure things: speed, launch\n"
        "  build    Build something.\n"
    )
    for typed in ([], ["--list"], ["help"], ["--help"]):
        assert run(SECTIONS, typed, capsys) == (0, expected, "")


@pytest.mark.parametrize(
    "typed",
    [["measure"], ["measure", "--help"], ["measure", "--list"], ["--list=measure"], ["help", "measure"]],
    ids=" ".join,
)
def test_a_group_answers_with_its_tasks(typed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(SECTIONS, typed, capsys)
    assert (code, err) == (0, "")
    assert out.splitlines()[0].startswith("Usage: ./inv measure TASK [options];")
    assert out.splitlines()[2:] == [
        "Measure things:",
        "  measure speed   Measure the speed.",
        "  measure launch  Launch.",
    ]


def test_help_shows_a_tasks_options_with_their_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    for typed in (["up", "--help"], ["help", "up"], ["--help", "up"], ["up", "-h", "--", "--x"]):
        code, out, err = run(SECTIONS, typed, capsys)
        assert (code, err) == (0, "")
        assert out.startswith("Usage: ./inv up [options] -- COMMAND\n\nRun a command.\n\nOptions:\n")
        assert "--nodes=INT" in out
        assert "containers (default: 2)" in out
    assert "Usage: ./inv measure speed [options]\n" in run(SECTIONS, ["measure", "speed", "--help"], capsys)[1]


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        (
            ["up", "--nodes", "2", "train", "--x=a b"],
            "up expects a command after --, found 'train' without --: run ./inv up --nodes 2 -- train '--x=a b'",
        ),
        (
            ["up", "--name", "train", "train"],
            "up expects a command after --, found 'train' without --: run ./inv up --name train -- train",
        ),
        (
            ["up", "launch", "--length=1"],
            "up expects a command after --, found 'launch' without --: run ./inv up -- launch --length=1",
        ),
        (
            ["measure", "launch", "train"],
            "measure launch expects a command after --, found 'train' without --: "
            "run ./inv measure launch -- train",
        ),
        (["build", "train"], "unknown task 'train'; ./inv --list shows the tasks"),
        (["build", "--", "train"], "build takes no command: leave out -- and what follows it"),
        (["measure", "speed", "--", "x"], "measure speed takes no command: leave out -- and what follows it"),
        (
            ["up", "--nodes", "1", "--nodes=3", "--", "train"],
            "up: --nodes is given twice, expected once; ./inv up --help shows its options",
        ),
        (
            ["up", "--name", "a", "--name", "b", "train"],
            "up: --name is given twice, expected once; ./inv up --help shows its options",
        ),
        (
            ["measure", "sped"],
            "measure has no task 'sped'; did you mean 'speed'? ./inv measure shows its tasks",
        ),
        (["build", "measure"], "measure is a group of tasks: ./inv measure shows its tasks"),
        (["--list", "build"], "--list 'build': expected a group of tasks: measure"),
        (["up", "--name="], "--name is empty, expected a value: check the variable, or leave the option out"),
        (["up", "--env", ""], "--env is empty, expected a value: check the variable, or leave the option out"),
        (["up", "--name", "-"], f"--name: {NO_DASH}"),
        (["up", "--nodes=\u0663"], "--nodes expects an integer, found '\u0663'"),
        (["speed"], "unknown task 'speed'; did you mean 'measure speed'? ./inv --list shows the tasks"),
        (
            ["measure", "speed", "--pn=1"],
            "measure speed has no option '--pn'; did you mean '--pin'? "
            "./inv measure speed --help shows its options",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_names_its_correction(typed: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(SECTIONS, typed, capsys) == (2, "", line + "\n")


def test_all_mistakes_of_up_are_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    typed = "--nodes=0 --ranks-per-node=0 --name=BAD --launcher=x --memory=q --env=1= --engine=z --max-restarts=-1"
    words = [*typed.split(), "--data=/nonexistent"]
    code, out, err = run(tasks.SECTIONS, ["up", *words], capsys)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert [word for word in words if word.partition("=")[0] not in err] == []
    assert "no command" in err


def test_every_option_of_the_real_tasks_has_a_help_text() -> None:
    members = itertools.chain(*tasks.SECTIONS.values())
    groups = [member.tasks.values() if isinstance(member, Collection) else [member] for member in members]
    for found in itertools.chain(*groups):
        assert isinstance(found, options.TaskSignature)
        assert len(found.get_arguments()) == len({argument.name for argument in found.get_arguments()})
        for argument in found.get_arguments():
            assert argument.help, f"{found.name} --{argument.name}"
        for name in inspect.signature(found.body).parameters:
            hint = get_type_hints(found.body, include_extras=True)[name]
            assert name == "command" or get_origin(hint) is Annotated or is_dataclass(hint), f"{found.name} {name}"
