"""The command line of ./inv: errors of one line, exit codes, and arguments that arrive as they were typed."""

from __future__ import annotations

import inspect
import itertools
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Annotated, get_origin, get_type_hints

import pytest
from invoke.collection import Collection

import tasks
from tests.signals import as_at_a_terminal
from tooling.basis.errors import UsageError
from tooling.basis.paths import ROOT
from tooling.cli import options
from tooling.cli.options import command_argv
from tooling.cli.parser import Member, TaskProgram, canonical_argv


@options.Task
def build(
    pin: Annotated[str, "a pin"] = "2.13",
    nodes: Annotated[int, "nodes"] = 1,
    rate: Annotated[float, "a rate"] = 1.0,
) -> None:
    """Build something."""
    print(f"{pin} {nodes} {rate}")


@options.Task
def measure_all() -> None:
    """Measure something."""


@options.Task
def refuse() -> None:
    """Refuse."""
    raise UsageError("found a, expected b: do c")


@options.Task
def interrupt() -> None:
    """Be interrupted."""
    raise KeyboardInterrupt


def run(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    code: int | str | None = 0
    try:
        TaskProgram({"Tests": [build, measure_all, refuse, interrupt]}).run(["inv", *argv])
    except SystemExit as end:
        code = end.code
    out, err = capsys.readouterr()
    assert isinstance(code, int)
    return code, out, err


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["biuld"], "there is no task 'biuld'; did you mean 'build'? ./inv --list shows the tasks"),
        (["zzzz"], "there is no task 'zzzz'; ./inv --list shows the tasks"),
        (["build", "zzzz"], "there is no task 'zzzz'; ./inv --list shows the tasks"),
        (["--help", "biuld"], "there is no task 'biuld'; did you mean 'build'? ./inv --list shows the tasks"),
        (["--ecoh"], "./inv has no option '--ecoh'; did you mean '--echo'? ./inv --list shows the tasks"),
        (
            ["build", "--node", "3"],
            "build has no option '--node'; did you mean '--nodes'? ./inv build --help shows its options",
        ),
        (["build", "--pin"], "build: --pin needs a value; ./inv build --help shows its options"),
        (["build", "--nodes", "two"], "--nodes expects a whole number, found 'two'"),
        (["build", "--nodes=2.5"], "--nodes expects a whole number, found '2.5'"),
        (["build", "--rate", "fast"], "--rate expects a number, found 'fast'"),
        (["refuse"], "found a, expected b: do c"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_usage_is_one_line_and_exit_code_2(
    argv: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(argv, capsys) == (2, "", line + "\n")


def test_options_reach_the_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["build", "--pin", "2.8", "--nodes=3"], capsys) == (0, "2.8 3 1.0\n", "")


@pytest.mark.parametrize("argv", [[], ["--list"]], ids=["alone", "--list"])
def test_the_tasks_are_shown(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(argv, capsys)
    assert (code, err) == (0, "")
    assert "build        " in out
    assert "measure-all  Measure something." in out


def test_an_interrupted_task_exits_as_a_shell_reports_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["interrupt"], capsys) == (130, "", "")


def test_what_follows_two_dashes_keeps_its_quoting() -> None:
    assert command_argv(["inv", "up", "--nodes", "2", "--", "train", "--x", "a b", "--", ""]) == [
        *("train", "--x", "a b", "--", ""),
    ]
    assert command_argv(["inv", "up"]) == command_argv(["inv", "up", "--"]) == []


# The process of ./inv with a tasks module of its own: one task, which says when it has begun and when it ends.
SLEEPER = """
import runpy, sys, time, types
from tooling.cli.options import Task

@Task
def sleep():
    try:
        print("begun", flush=True)
        time.sleep(30)
    finally:
        print("torn down", flush=True)

sys.modules["tasks"] = types.ModuleType("tasks")
sys.modules["tasks"].SECTIONS = {"Tests": [sleep]}
runpy.run_module("tooling", run_name="__main__")
"""


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=["SIGINT", "SIGTERM", "SIGHUP"]
)
def test_a_signal_lets_the_task_tear_down_and_gives_no_traceback(number: signal.Signals) -> None:
    argv = [sys.executable, "-c", SLEEPER, "sleep"]
    with subprocess.Popen(
        argv,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=as_at_a_terminal,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        os.kill(process.pid, number)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (128 + number, "torn down\n", "")


def test_under_nohup_a_hang_up_does_not_end_the_task() -> None:
    argv = ["nohup", sys.executable, "-c", SLEEPER.replace("time.sleep(30)", "time.sleep(0.3)"), "sleep"]
    with subprocess.Popen(
        argv, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        os.kill(process.pid, signal.SIGHUP)
        out, _err = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "torn down\n")


@pytest.mark.parametrize("where", [ROOT, Path("/")], ids=["the checkout", "another directory"])
def test_the_real_tasks_are_found_from_anywhere(where: Path) -> None:
    done = subprocess.run(
        [ROOT / "inv", "--list"], cwd=where, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "  doctor " in done.stdout


@pytest.mark.parametrize("argv", [["docter"], ["doctor", "--jsn"]], ids=["unknown task", "unknown option"])
def test_the_real_program_refuses_in_one_line(argv: list[str]) -> None:
    done = subprocess.run([ROOT / "inv", *argv], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "did you mean" in done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_a_reader_that_closes_early_gives_no_traceback(unbuffered: str) -> None:
    environ = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with subprocess.Popen(
        [ROOT / "inv", "--list"], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=60) == 128 + signal.SIGPIPE


@options.Task
def speed(pin: Annotated[str, "a pin"] = "2.13") -> None:
    """Measure the speed."""
    print(f"speed of {pin}")


@options.Task
def up(
    command: tuple[str, ...],
    nodes: Annotated[int, "containers"] = 2,
    name: Annotated[str | None, "a name"] = None,
    env: Annotated[tuple[str, ...], "a variable"] = (),
) -> None:
    """Run a command."""
    print(nodes, name, env, command)


@dataclass(frozen=True)
class Size:
    """A request: `length` is an option, `unit` is not."""

    length: Annotated[int | None, "the length"] = None
    unit: str = "mm"


@options.Task
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


def run_grouped(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code: int | str | None = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["inv", *argv])
        try:
            TaskProgram(SECTIONS).run(["inv", *argv])
        except SystemExit as end:
            code = end.code
    out, err = capsys.readouterr()
    assert isinstance(code, int)
    return code, out, err


@pytest.mark.parametrize(
    ("typed", "canonical"),
    [
        (["inv", "bench", "train", "--pin=1"], ["inv", "bench.train", "--pin=1"]),
        (["inv", "--echo", "bench", "train"], ["inv", "--echo", "bench.train"]),
        (["inv", "bench", "train", "--help"], ["inv", "bench.train", "--help"]),
        (["inv", "build", "train"], ["inv", "build", "train"]),
        (["inv", "up", "--", "bench", "train"], ["inv", "up", "--", "bench", "train"]),
        (["inv", "up", "--", "help"], ["inv", "up", "--", "help"]),
        (["inv", "bench"], ["inv", "--list=bench"]),
        (["inv", "bench", "--help"], ["inv", "--list=bench"]),
        (["inv", "bench", "--list"], ["inv", "--list=bench"]),
        (["inv", "--help", "bench"], ["inv", "--list=bench"]),
        (["inv", "help"], ["inv", "--list"]),
        (["inv", "help", "up"], ["inv", "--help", "up"]),
        (["inv", "help", "bench"], ["inv", "--list=bench"]),
        (["inv", "help", "bench", "train"], ["inv", "--help", "bench.train"]),
    ],
    ids=lambda words: " ".join(words),
)
def test_groups_and_help_become_what_invoke_knows(typed: list[str], canonical: list[str]) -> None:
    assert canonical_argv(typed, {"bench": ["train"]}) == canonical


def test_a_task_of_a_group_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_grouped(["measure", "speed", "--pin=3"], capsys) == (0, "speed of 3\n", "")


def test_a_dataclass_declares_the_options_of_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_grouped(["launch", "--length=3", "--", "a b"], capsys) == (0, "3 mm ('a b',)\n", "")
    assert run_grouped(["launch"], capsys) == (0, "None mm ()\n", "")
    code, _out, err = run_grouped(["launch", "--unit=cm"], capsys)
    assert (code, err.startswith("launch has no option '--unit'")) == (2, True)
    assert run_grouped(["launch", "--length=x"], capsys)[2] == "--length expects a whole number, found 'x'\n"


def test_an_option_may_be_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    typed = ["up", "--env", "A=1", "--env", "B=2", "--", "train", "--x", "--"]
    assert run_grouped(typed, capsys)[1] == "2 None ('A=1', 'B=2') ('train', '--x', '--')\n"


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
    for typed in ([], ["--list"], ["help"]):
        assert run_grouped(typed, capsys) == (0, expected, "")


@pytest.mark.parametrize("typed", [["measure"], ["measure", "--help"], ["measure", "--list"]], ids=" ".join)
def test_a_group_answers_with_its_tasks(typed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_grouped(typed, capsys)
    assert (code, err) == (0, "")
    assert out.splitlines()[0].startswith("Usage: ./inv measure TASK [options];")
    assert out.splitlines()[2:] == [
        "Measure things:",
        "  measure speed   Measure the speed.",
        "  measure launch  Launch.",
    ]


def test_help_shows_a_tasks_options_with_their_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    for typed in (["up", "--help"], ["help", "up"]):
        code, out, err = run_grouped(typed, capsys)
        assert (code, err) == (0, "")
        assert out.startswith("Usage: ./inv up [options] -- COMMAND\n\nRun a command.\n\nOptions:\n")
        assert "--nodes=INT" in out
        assert "containers (default: 2)" in out
    assert "Usage: ./inv measure speed [options]\n" in run_grouped(["measure", "speed", "--help"], capsys)[1]


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
        (["build", "train"], "there is no task 'train'; ./inv --list shows the tasks"),
        (
            ["measure", "sped"],
            "measure has no task 'sped'; did you mean 'speed'? ./inv measure shows its tasks",
        ),
        (["build", "measure"], "measure has no task ''; ./inv measure shows its tasks"),
        (["speed"], "there is no task 'speed'; did you mean 'measure speed'? ./inv --list shows the tasks"),
        (
            ["measure", "speed", "--pn=1"],
            "measure speed has no option '--pn'; did you mean '--pin'? "
            "./inv measure speed --help shows its options",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_names_its_correction(typed: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_grouped(typed, capsys) == (2, "", line + "\n")


def test_every_option_of_the_real_tasks_has_a_help_text() -> None:
    members = itertools.chain(*tasks.SECTIONS.values())
    groups = [member.tasks.values() if isinstance(member, Collection) else [member] for member in members]
    for found in itertools.chain(*groups):
        assert isinstance(found, options.Task)
        assert len(found.get_arguments()) == len({argument.name for argument in found.get_arguments()})
        for argument in found.get_arguments():
            assert argument.help, f"{found.name} --{argument.name}"
        for name in inspect.signature(found.function).parameters:
            hint = get_type_hints(found.function, include_extras=True)[name]
            assert name == "command" or get_origin(hint) is Annotated or is_dataclass(hint), f"{found.name} {name}"
