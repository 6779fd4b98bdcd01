"""The tasks under invoke as it comes: the same results as under ./inv."""

import ast
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import invoke
import pytest
from invoke.program import Program

import tasks
from tests.forks import Forks
from tests.unit.tooling.cli.program import run
from tooling.basis.paths import ROOT

NAMES = sorted(tasks.namespace.task_names)
PUSHED = f"localhost:5000/n@sha256:{'0' * 64}"


def test_every_task_is_listed_from_any_folder_of_the_checkout() -> None:
    argv = [sys.executable, "-m", "invoke", "--list"]
    done = subprocess.run(argv, cwd=ROOT / "docs", capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    out = done.stdout
    assert sorted(re.findall(r"^  ([a-z][a-z.-]*)  ", out, re.MULTILINE)) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_each_tasks_help_has_the_texts_of_inv(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        Program().run(["invoke", f"--search-root={ROOT}", "--help", name])
    shown = capsys.readouterr().out
    code, ours, err = run(tasks.SECTIONS, ["--help", name], capsys)
    assert (end.value.code, code, err) == (0, 0, "")
    for text in [
        tasks.namespace[name].__doc__,
        *(option.help for option in tasks.namespace[name].get_arguments()),
    ]:
        assert "".join(text.split()) in "".join(shown.split())
        assert "".join(text.split()) in "".join(ours.split())
    flags = re.compile(r"^  (--[a-z-]+)", re.MULTILINE)
    assert flags.findall(shown) == flags.findall(ours)


@pytest.mark.parametrize(
    ("typed", "code"),
    [
        ("matrix --json", 0),
        (f"manifest.pytorchjob --image={PUSHED} --cpus 4 --memory=8Gi --env=A=1 -- train a|b", 0),
        ("up --print-compose --image=host/name:1 --data=. --output=/tmp -- train a|'b'", 0),
        ("build --pin 1.9", 2),
        ("build --all --pin=2.13", 2),
        ("up --nodes two", 2),
        ("up --nodes=0 --launcher=x", 2),
        ("bench.train --pin=1.9", 2),
        ("matrix --html=/proc/none/page.html", 2),
        ("compare --folders=/nowhere --folders /nowhere/2", 2),
    ],
)
def test_a_task_does_what_it_does_under_inv(
    typed: str, code: int, python: Forks, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.replace("|", " ") for word in typed.split()]
    ours = run(tasks.SECTIONS, words, capsys)
    plain = python.run(["-m", "invoke", *words], ROOT)
    assert (plain.returncode, plain.stdout, plain.stderr) == ours
    assert (ours[0], bool(ours[1]), ours[2].count("\n")) == (code, code == 0, int(code == 2))


def test_a_signal_runs_a_tasks_finally_blocks(tmp_path: Path, python: Forks) -> None:
    """Also: a closed pipe gives no traceback."""
    (tmp_path / "tasks.py").write_text(
        "import time\nfrom tooling.cli.options import task\n\n"
        "@task\ndef sleep() -> None:\n    'Sleep.'\n"
        "    try:\n        print('begun', flush=True)\n        time.sleep(30)\n"
        "    finally:\n        print('torn down', flush=True)\n\n"
        "@task\ndef print_much() -> None:\n    'Print.'\n    print('x' * 1_000_000)\n"
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        with python.piped(["-m", "invoke", "sleep"], tmp_path) as (process, out, error):
            assert out.readline() == "begun\n"
            os.kill(process.pid, number)
            assert (process.wait(), out.read(), error.read()) == (128 + number, "torn down\n", "")
    with python.piped(["-m", "invoke", "print-much"], tmp_path) as (process, out, error):
        out.close()
        assert (process.wait(), error.read()) == (128 + signal.SIGPIPE, "")


# invoke in a Python that has no other package. `-S` leaves out the folder of installed packages.
ELSEWHERE = "import sys; {}; from invoke.main import program; program.run(['invoke', 'matrix'])"


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("pass", "cannot import "),
        ("sys.version_info = (3, 9, 2, 'final', 0)", "found Python 3.9, expected 3.11 or newer"),
    ],
    ids=["without the packages", "an older Python"],
)
def test_an_invoke_from_elsewhere_gets_one_line_that_names_inv(change: str, found: str, tmp_path: Path) -> None:
    (tmp_path / "invoke").symlink_to(Path(invoke.__file__).parent)
    done = subprocess.run(
        [sys.executable, "-S", "-c", ELSEWHERE.format(change)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert found in done.stderr
    assert "./inv" in done.stderr


def test_an_older_python_can_parse_the_tasks() -> None:
    ast.parse((ROOT / "tasks.py").read_text(encoding="utf-8"), feature_version=(3, 7))
