"""The entrypoint's dispatch, in processes of its own. There is no torch here: what answers has not imported it."""

from __future__ import annotations

import json
import os
import resource
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cpu_train_stack.__main__ import main
from cpu_train_stack.plan import command as plan
from tests.forks import forks
from tests.unit.entrypoints import ROOT
from tests.unit.entrypoints import launcher_environments as recorded

# What most of the commands here import.
_MODULES = ("cpu_train_stack.launch.agent", "cpu_train_stack.plan.command", "cpu_train_stack.rank.start")


def entrypoint(
    *argv: str, env: dict[str, str] | None = None, cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """The end of a fork that runs the command."""
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **(env or {})}
    return forks(_MODULES, ROOT).run(["-m", "cpu_train_stack", *argv], cwd, environ)


def one_error_line(done: subprocess.CompletedProcess[str], code: int = 2) -> str:
    assert done.returncode == code, done
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]], ids=["nothing", "--help", "-h"])
def test_help_lists_the_commands(argv: list[str]) -> None:
    done = entrypoint(*argv)
    assert done.returncode == 0
    for command in ("train", "run", "bench", "launch", "plan"):
        assert f"\n  {command} " in done.stdout


def test_the_version_line_names_the_pin() -> None:
    assert entrypoint("--version", env={"CPU_TRAIN_STACK_PIN": "2.13"}).stdout == "cpu-train-stack, pin 2.13\n"


@pytest.mark.parametrize("command", ["watch", "report"])
def test_a_name_that_no_file_can_have_is_one_short_line(command: str) -> None:
    line = one_error_line(entrypoint(*command.split(), "x" * 5000))
    assert line.startswith("error: ")
    assert len(line) < 6000


def test_a_value_with_a_newline_stays_in_its_line() -> None:
    done = entrypoint("run", "a.py", env={"OMPI_COMM_WORLD_RANK": "a\nb"})
    assert one_error_line(done).startswith(r"error: found OMPI_COMM_WORLD_RANK=a\nb, but not ")


def test_anything_else_is_executed_as_it_is() -> None:
    done = entrypoint("sh", "-c", 'echo "$0 $1 $2"; exit 7', "a b", "")
    assert done.returncode == 7
    assert done.stdout == "a b  \n"


def test_the_command_replaces_the_process() -> None:
    code = "import os; print(os.getpid())"
    process = subprocess.Popen(
        [sys.executable, "-m", "cpu_train_stack", sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    printed, _ = process.communicate(timeout=60)
    assert int(printed) == process.pid


def test_the_command_does_not_inherit_that_python_ignores_sigpipe() -> None:
    ignored = entrypoint("grep", "SigIgn", "/proc/self/status").stdout.split()[1]
    assert not int(ignored, 16) >> (signal.SIGPIPE - 1) & 1


def test_a_reader_that_closes_the_pipe_early_gets_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        done = forks(_MODULES, ROOT).run(["-m", "cpu_train_stack", "plan"], ROOT, stdout=closed)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize("argv", [["--help"], ["plan"], ["plan", "--help"]], ids=" ".join)
def test_a_full_disk_is_one_line(argv: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = forks(_MODULES, ROOT).run(
            ["-m", "cpu_train_stack", *argv], ROOT, {"PATH": os.environ["PATH"]}, full
        )
    line = "error: cannot write the result (No space left on device): free some space, and run the command again\n"
    assert (done.returncode, done.stderr) == (2, line)


def test_ctrl_c_prints_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(argv: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(plan, "main", interrupted)
    monkeypatch.setattr(sys, "argv", ["entrypoint", "plan"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module("cpu_train_stack", run_name="__main__")
    assert (end.value.code, capsys.readouterr().err) == (128 + signal.SIGINT, "")


@pytest.mark.parametrize("command", ["no-such-command", ""])
def test_a_missing_command_is_127_and_one_line(command: str) -> None:
    assert f"{command!r} is neither" in one_error_line(entrypoint(command), 127)


def test_a_file_that_cannot_be_executed_is_126_and_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("text")
    assert "Permission denied" in one_error_line(entrypoint(str(file)), 126)


# plan


def test_plan_prints_one_json_document() -> None:
    document = json.loads(entrypoint("plan", "--json").stdout)
    assert document["launcher"] == "single"
    assert document["cores"] == sorted(os.sched_getaffinity(0))
    assert document["environment"]["OMP_NUM_THREADS"] == str(document["omp_num_threads"])


def test_plan_of_an_mpi_rank_shows_its_place() -> None:
    document = json.loads(entrypoint("plan", "--json", env=recorded.intel_mpi(1, 2, 2)).stdout)
    assert (document["rank"], document["local_rank"], document["launcher"]) == (1, 1, "hydra")


def test_plan_as_a_table_shows_the_same() -> None:
    table = entrypoint("plan", env=recorded.open_mpi_5(0, 2, 2)).stdout
    assert "launcher    Open MPI" in table
    assert "variable    WORLD_SIZE=2" in table


def test_plan_costs_little_more_than_the_standard_library_it_needs() -> None:
    """Processor time of the quickest of five runs each, in turns: a busy machine makes both slower."""

    def spent(command: list[str]) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert subprocess.run(command, cwd=ROOT, capture_output=True, check=False, timeout=60).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    plan = [sys.executable, "-m", "cpu_train_stack", "plan", "--json"]
    libraries = [sys.executable, "-c", "import argparse, dataclasses, json, pathlib, re, subprocess"]
    pairs = [(spent(plan), spent(libraries)) for _ in range(5)]
    assert min(pair[0] for pair in pairs) < 4 * min(pair[1] for pair in pairs)


def test_plan_preloads_nothing_into_itself() -> None:
    code = "import os, sys; from cpu_train_stack.__main__ import main; main(['plan'])"
    code += "; sys.exit('LD_PRELOAD' in os.environ)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0


@pytest.mark.parametrize("name", ["json", "pathlib", "argparse", "subprocess", "dataclasses"])
def test_files_in_the_current_folder_do_not_hide_libraries(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("raise SystemExit(9)")
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-m", "cpu_train_stack", "plan"]
    done = subprocess.run(argv, env=environ, cwd=tmp_path, capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


# Bad usage


def test_an_unknown_flag_of_plan_is_one_line() -> None:
    assert "--jsn" in one_error_line(entrypoint("plan", "--jsn"))


@pytest.mark.parametrize("command", ["train", "run", "plan"])
def test_a_contradiction_stops_every_rank_command_before_anything_is_imported(command: str) -> None:
    line = one_error_line(entrypoint(command, env=recorded.plain(2, 2, 0, 1)))
    assert line.startswith("error: rank is 2, expected 0 to 1")


def test_a_missing_master_addr_is_one_line() -> None:
    assert "MASTER_ADDR is not set" in one_error_line(entrypoint("train", env=recorded.intel_mpi(0, 2, 1)))


def test_a_usage_error_leaves_its_cause_for_the_launcher(tmp_path: Path) -> None:
    file = tmp_path / "error.json"
    environ = {**recorded.plain(2, 2, 0, 1), "TORCHELASTIC_ERROR_FILE": str(file)}
    one_error_line(entrypoint("run", "script.py", env=environ))
    left = json.loads(file.read_text())
    assert left["printed"] is True
    assert "rank is 2" in left["message"]["message"]
    assert int(left["message"]["extraInfo"]["timestamp"]) > 0


def test_the_first_cause_that_was_left_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "error.json"
    file.write_text("{}")
    entrypoint("run", env={**recorded.plain(2, 2, 0, 1), "TORCHELASTIC_ERROR_FILE": str(file)})
    assert file.read_text() == "{}"


@pytest.mark.parametrize(
    ("port", "expected"),
    [
        ("tcp://10.0.0.1:29500", "error: MASTER_PORT is 'tcp://10.0.0.1:29500', expected an integer"),
        ("70000", "error: master_port is 70000, expected 1 to 65535"),
    ],
)
def test_a_port_that_the_doctor_cannot_serve_is_one_line(port: str, expected: str) -> None:
    assert one_error_line(entrypoint("doctor", "--serve", env={"MASTER_PORT": port})).startswith(expected)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], "no command"),
        (["--"], "no command"),
        (
            ["--nproc-per-node", "0", "--", "train"],
            "--nproc-per-node: found '0', expected a number of ranks from 1",
        ),
        (["--nproc-per-node", "two", "--", "train"], "'two'"),
        (["--nnodes", "2", "--", "train"], "missing --node-rank and --master-addr: "),
        (["--nnodes", "2", "--node-rank", "1", "--", "train"], "missing --master-addr: "),
        (
            ["--nnodes", "2", "--node-rank", "2", "--master-addr", "h", "--", "train"],
            "--node-rank is 2, expected an integer from 0 to 1",
        ),
        (["--nnodes", "1:3", "--", "train"], "is a range"),
        (
            ["--master-port", "70000", "--", "train"],
            "--master-port: found '70000', expected a port from 0 to 65535",
        ),
        (
            ["--nnodes", "2", "--node-rank", "0", "--master-addr", "h", "--master-port", "0", "--", "train"],
            "--master-port is 0, expected one port for all nodes, such as 29500",
        ),
        (["--max-restarts", "-1", "--", "train"], "--max-restarts"),
        (["--timeout", "0", "--", "train"], "--timeout"),
        (["--nproc", "2", "--", "train"], "launch: unrecognized arguments"),
        (["--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1", "--", "train"], "loopback"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_usage_of_launch_is_one_line(argv: list[str], expected: str) -> None:
    assert expected in one_error_line(entrypoint("launch", *argv))


def test_a_node_that_cannot_be_found_may_be_late() -> None:
    """Kubernetes restarts the pod, unlike after bad usage: its name may not resolve yet."""
    argv = ("--nnodes=2", "--node-rank=0", "--master-addr=no.invalid", "--timeout=1", "--", "train")
    assert "resolve" in one_error_line(entrypoint("launch", *argv), code=1)


@pytest.mark.parametrize(("is_terminal", "seconds"), [(True, "0.1"), (False, "10")])
def test_a_log_gets_fewer_states_of_progress_bars_than_a_terminal(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, seconds: str
) -> None:
    monkeypatch.setattr("os.isatty", lambda _file: is_terminal)
    for given, expected in (({}, seconds), ({"TQDM_MININTERVAL": "3"}, "3")):
        environ = dict(given)
        monkeypatch.setattr("os.environ", environ)
        assert main(["launch", "--no-such-option"]) == 2
        assert environ["TQDM_MININTERVAL"] == expected
