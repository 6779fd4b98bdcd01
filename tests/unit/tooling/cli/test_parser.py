"""The command line of ./inv: errors of one line, exit codes, and arguments that arrive as they were typed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from invoke.collection import Collection
from invoke.context import Context
from invoke.tasks import task

from tests.signals import as_at_a_terminal
from tooling.basis.errors import UsageError
from tooling.basis.paths import ROOT
from tooling.cli.parser import TaskProgram, join_names, remainder_argv


@task
def build(_c: Context, pin: str = "2.13", nodes: int = 1, rate: float = 1.0) -> None:
    """Build something."""
    print(f"{pin} {nodes} {rate}")


@task
def bench(_c: Context, what: str) -> None:
    """Measure something."""
    print(what)


@task
def refuse(_c: Context) -> None:
    """Refuse."""
    raise UsageError("found a, expected b: do c")


@task
def interrupt(_c: Context) -> None:
    """Be interrupted."""
    raise KeyboardInterrupt


def run(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    code: int | str | None = 0
    try:
        TaskProgram(Collection(build, bench, refuse, interrupt)).run(["inv", *argv])
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
        (["bench"], "bench needs WHAT; ./inv bench --help shows what it takes"),
        (["refuse"], "found a, expected b: do c"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_usage_is_one_line_and_exit_code_2(
    argv: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(argv, capsys) == (2, "", line + "\n")


def test_options_and_words_reach_the_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["build", "--pin", "2.8", "--nodes=3"], capsys) == (0, "2.8 3 1.0\n", "")
    assert run(["bench", "collectives"], capsys) == (0, "collectives\n", "")


@pytest.mark.parametrize("argv", [[], ["--list"]], ids=["alone", "--list"])
def test_the_tasks_are_shown(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(argv, capsys)
    assert (code, err) == (0, "")
    assert "build     " in out
    assert "Measure something." in out


def test_an_interrupted_task_exits_as_a_shell_reports_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["interrupt"], capsys) == (130, "", "")


def test_what_follows_two_dashes_keeps_its_quoting() -> None:
    assert remainder_argv(["inv", "up", "--nodes", "2", "--", "train", "--x", "a b", "--", ""]) == [
        *("train", "--x", "a b", "--", ""),
    ]
    assert remainder_argv(["inv", "up"]) == remainder_argv(["inv", "up", "--"]) == []


# The process of ./inv with a tasks module of its own: one task, which says when it has begun and when it ends.
SLEEPER = """
import runpy, sys, time, types
from invoke.tasks import task

@task
def sleep(_c):
    try:
        print("begun", flush=True)
        time.sleep(30)
    finally:
        print("torn down", flush=True)

sys.modules["tasks"] = types.ModuleType("tasks")
sys.modules["tasks"].sleep = sleep
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


@pytest.mark.parametrize(
    ("typed", "joined"),
    [
        (["inv", "bench", "train", "--pin=1"], ["inv", "bench-train", "--pin=1"]),
        (["inv", "--echo", "bench", "train"], ["inv", "--echo", "bench-train"]),
        (["inv", "bench", "--help"], ["inv", "bench", "--help"]),
        (["inv", "build", "train"], ["inv", "build", "train"]),
        (["inv", "up", "--", "bench", "train"], ["inv", "up", "--", "bench", "train"]),
    ],
    ids=lambda words: " ".join(words),
)
def test_two_words_that_name_a_task_are_one(typed: list[str], joined: list[str]) -> None:
    assert join_names(typed, ["build", "up", "bench-train"]) == joined


def test_a_task_of_two_words_is_run_and_the_first_word_alone_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    @task(name="measure-speed")
    def measure(_c: Context, pin: str = "2.13") -> None:
        print(f"speed of {pin}")

    program = TaskProgram(Collection(measure))
    program.run(["inv", "measure", "speed", "--pin=3"])
    assert capsys.readouterr().out == "speed of 3\n"
    with pytest.raises(SystemExit) as end:
        program.run(["inv", "measure"])
    assert end.value.code == 2
    assert "no task 'measure', there is: measure speed; ./inv --list" in capsys.readouterr().err
