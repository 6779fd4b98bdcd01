"""The command line of ./inv: errors of one line, exit codes, and arguments that arrive as they were typed."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest

from cpu_train_stack.cli.errors import UsageError
from tests.forks import Forks
from tests.unit.tooling.cli.program import run
from tooling.basis.paths import CACHE, ROOT
from tooling.cli import options
from tooling.cli.options import command_argv
from tooling.cli.parser import Member
from tooling.image import recipe


@options.task
def build(
    pin: Annotated[str, "a pin"] = "2.13",
    nodes: Annotated[int, "nodes"] = 1,
    rate: Annotated[float, "a rate"] = 1.0,
    quick: Annotated[bool, "build it quickly"] = False,
) -> None:
    """Build something."""
    print(f"{pin} {nodes} {rate}{' quick' if quick else ''}")


@options.task
def measure_all() -> None:
    """Measure something."""


@options.task
def refuse() -> None:
    """Refuse."""
    raise UsageError("found a, expected b: do c")


@options.task
def interrupt() -> None:
    """Be interrupted."""
    raise KeyboardInterrupt


@options.task
def write(path: Annotated[str, "a path"] = "", code: Annotated[int, "an errno"] = errno.EACCES) -> None:
    """Fail to write a file."""
    raise OSError(code, os.strerror(code), path)


@options.task
def wait() -> None:
    """Wait too long for an engine."""
    subprocess.run(["sleep", "60", "0"], timeout=0.01, check=False)


SECTIONS: dict[str, list[Member]] = {"Tests": [build, measure_all, refuse, interrupt, write, wait]}


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["biuld"], "unknown task 'biuld'; did you mean 'build'? ./inv --list shows the tasks"),
        (["zzzz"], "unknown task 'zzzz'; ./inv --list shows the tasks"),
        (["build", "zzzz"], "unknown task 'zzzz'; ./inv --list shows the tasks"),
        (["--help", "biuld"], "unknown task 'biuld'; did you mean 'build'? ./inv --list shows the tasks"),
        (["--lits"], "./inv has no option '--lits'; did you mean '--list'? ./inv --list shows the tasks"),
        (["--dry", "build"], "./inv has no option '--dry'; ./inv --list shows the tasks"),
        (["build", "-R"], "build has no option '-R'; ./inv build --help shows its options"),
        (["-f", "/nope", "build"], "./inv has no option '-f'; ./inv --list shows the tasks"),
        (["--config=/nope", "build"], "./inv has no option '--config'; ./inv --list shows the tasks"),
        (["-D"], "./inv has no option '-D'; ./inv --list shows the tasks"),
        (
            ["--print-completion-script"],
            "./inv: --print-completion-script needs a value; ./inv --list shows the tasks",
        ),
        (
            ["build", "--node", "3"],
            "build has no option '--node'; did you mean '--nodes'? ./inv build --help shows its options",
        ),
        (
            ["build", "--quick=yes"],
            "build: --quick takes no value, found 'yes'; ./inv build --help shows its options",
        ),
        (["--version=yes"], "./inv: --version takes no value, found 'yes'; ./inv --list shows the tasks"),
        (["build", "--pin"], "build: --pin needs a value; ./inv build --help shows its options"),
        (["build", "--nodes", "two"], "--nodes expects an integer, found 'two'"),
        (["build", "--nodes=2.5"], "--nodes expects an integer, found '2.5'"),
        (["build", "--rate", "fast"], "--rate expects a number, found 'fast'"),
        (["refuse"], "found a, expected b: do c"),
        (["build", "--", "\udcff"], r"found the argument '\udcff', expected text in UTF-8"),  # the byte 0xff
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_usage_is_one_line_and_exit_code_2(
    argv: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(SECTIONS, argv, capsys) == (2, "", line + "\n")


def test_options_reach_the_task(capsys: pytest.CaptureFixture[str]) -> None:
    typed = ["build", "--pin", "2.8", "--quick", "--nodes=3"]
    assert run(SECTIONS, typed, capsys) == (0, "2.8 3 1.0 quick\n", "")


@pytest.mark.parametrize("argv", [[], ["--list"]], ids=["alone", "--list"])
def test_the_tasks_are_listed(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(SECTIONS, argv, capsys)
    assert (code, err) == (0, "")
    assert "build        " in out
    assert "measure-all  Measure something." in out


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(SECTIONS, ["--version"], capsys) == (0, f"cpu-train-stack {recipe.project_version()}\n", "")


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
def test_a_checkout_that_is_not_writable_is_one_line(code: int, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(SECTIONS, ["write", f"--path={CACHE / 'build' / 'x'}", f"--code={code}"], capsys)
    line = (
        f".cache/build/x: {os.strerror(code)}, expected a checkout that you can write to: become its owner "
        f"(sudo chown -R $USER '{ROOT}'), or use a copy of it\n"
    )
    assert found == (2, "", line)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_one_line(code: int, capsys: pytest.CaptureFixture[str]) -> None:
    line = f"/elsewhere: {os.strerror(code)}: free some space, and run the same command again\n"
    assert run(SECTIONS, ["write", "--path=/elsewhere", f"--code={code}"], capsys) == (2, "", line)


def test_a_command_that_does_not_end_in_time_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    line = "sleep 60 did not end within 0 s: check the engine (./inv doctor), and run the same command again\n"
    assert run(SECTIONS, ["wait"], capsys) == (2, "", line)


@pytest.mark.parametrize("code", [errno.EACCES, errno.ENOTDIR, errno.ENAMETOOLONG])
def test_a_path_that_the_user_cannot_use_is_one_line(code: int, capsys: pytest.CaptureFixture[str]) -> None:
    line = f"/elsewhere: {os.strerror(code)}: choose a path that you can use, or change its permissions\n"
    assert run(SECTIONS, ["write", "--path=/elsewhere", f"--code={code}"], capsys) == (2, "", line)


def test_another_error_of_a_file_keeps_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OSError, match="/elsewhere"):
        run(SECTIONS, ["write", "--path=/elsewhere", f"--code={errno.EEXIST}"], capsys)


def test_an_interrupted_task_exits_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(SECTIONS, ["interrupt"], capsys) == (130, "", "")


def test_the_command_after_two_dashes_keeps_its_quoting() -> None:
    assert command_argv(["inv", "up", "--nodes", "2", "--", "train", "--x", "a b", "--", ""]) == [
        *("train", "--x", "a b", "--", ""),
    ]
    assert command_argv(["inv", "up"]) == command_argv(["inv", "up", "--"]) == []


# ./inv with another tasks module, whose only task prints a line when it begins and when it ends.
SLEEPER = """
import runpy, sys, time, types
from tooling.cli.options import task

@task
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
def test_a_signal_runs_the_finally_blocks_of_the_task_and_gives_no_traceback(
    number: signal.Signals, python: Forks
) -> None:
    with python.piped(["-c", SLEEPER, "sleep"], ROOT) as (process, out, error):
        assert out.readline() == "begun\n"
        os.kill(process.pid, number)
        assert (process.wait(), out.read(), error.read()) == (128 + number, "torn down\n", "")


def test_sighup_does_not_end_a_task_under_nohup() -> None:
    argv = ["nohup", sys.executable, "-c", SLEEPER.replace("time.sleep(30)", "time.sleep(0.3)"), "sleep"]
    with subprocess.Popen(
        argv, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        os.kill(process.pid, signal.SIGHUP)
        out, _err = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "torn down\n")


def test_the_real_tasks_are_found_from_another_folder() -> None:
    done = subprocess.run(
        [ROOT / "inv", "--list"], cwd="/", capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "  doctor " in done.stdout


@pytest.mark.parametrize("argv", [["docter"], ["doctor", "--jsn"]], ids=["unknown task", "unknown option"])
def test_the_real_program_reports_bad_usage_in_one_line(argv: list[str], python: Forks) -> None:
    done = python.run(["-m", "tooling", *argv], ROOT)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "did you mean" in done.stderr


@pytest.mark.parametrize("command", ["--list", "matrix"])  # printed by Python and by rich
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_a_full_disk_behind_standard_output_is_one_line(unbuffered: str, command: str, python: Forks) -> None:
    environ = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("wb") as full:
        done = python.run(["-m", "tooling", command], ROOT, environ, full)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "No space left on device: free some space" in done.stderr


@pytest.mark.parametrize("command", ["--list", "matrix"])
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_a_closed_pipe_gives_no_traceback(unbuffered: str, command: str, python: Forks) -> None:
    environ = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        done = python.run(["-m", "tooling", command], ROOT, environ, closed)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize(
    ("command", "code"), [("--list", 0), ("matrix --json", 0), ("docter", 2)], ids=["--list", "matrix", "docter"]
)
def test_streams_that_are_closed_are_empty_ones(command: str, code: int) -> None:
    """tests/unit/tooling/cli/test_inv.py closes them one by one."""
    argv = ["bash", "-c", f"{ROOT / 'inv'} {command} <&- >&- 2>&-"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
