"""Scripts that `accelerate launch` starts once become the ranks that its command line or its file asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpu_train_stack import contract
from cpu_train_stack.rank.accelerated import ranks

ACCELERATE = ["/opt/venv/bin/python", "/opt/venv/bin/accelerate", "launch", "--cpu"]
SCRIPT = ["train.py", "--lr", "1", "--num_processes", "4"]
LAUNCH = ["launch", "--nproc-per-node", "2", "--", "run"]


@pytest.mark.parametrize(
    ("accelerate", "child", "program"),
    [
        ([*ACCELERATE, "--num_processes", "2"], [], SCRIPT),
        ([*ACCELERATE, "--num_processes=2"], [], SCRIPT),
        ([*ACCELERATE, "--num-processes", "2"], [], SCRIPT),
        ([*ACCELERATE, "--num_processes=2", "-m"], ["-m"], ["package.train", *SCRIPT[1:]]),
        ([*ACCELERATE, "--num_processes=2", "--no_python", "python", "-u"], ["-u"], SCRIPT),
        (["python", "-u", *ACCELERATE[1:], "--num_processes=2"], [], SCRIPT),
        (["python", "-m", "accelerate.commands.launch", "--num_processes=2"], [], SCRIPT),
        (["python", "/bin/accelerate-launch", "--num_processes=2"], [], SCRIPT),
    ],
    ids=["number", "=", "-", "module", "python -u", "accelerate under -u", "accelerate's module", "one word"],
)
def test_a_single_process_on_cpus_becomes_the_ranks(
    accelerate: list[str], child: list[str], program: list[str]
) -> None:
    line = ["python", *child, *program]
    run = [*(["-m"] if child == ["-m"] else []), *program]
    parent = [*accelerate, *program]
    launch, said = ranks(line, {}, parent)
    assert launch == [*LAUNCH, *run]
    assert said.startswith("note: ")
    assert program[0] in said
    assert ranks(line, {"RANK": "0"}, parent) == ([], "")
    assert ranks(line, {contract.TORCHRUN: "plain"}, parent) == ([], "")


@pytest.mark.parametrize(
    "parent",
    [
        [*ACCELERATE, *SCRIPT],
        [*ACCELERATE, "--num_processes=1", *SCRIPT],
        [*ACCELERATE, "--num_processes=2", "other.py"],
        ["bash", "-c", "accelerate", "launch", "--num_processes=2", *SCRIPT],
        ["python", "train.py", "--num_processes=2", *SCRIPT],
        [],
    ],
    ids=["the script's own number", "one", "a child of the script", "a shell", "another launcher", "unknown"],
)
def test_other_processes_stay(parent: list[str], tmp_path: Path) -> None:
    environ = {"HF_HOME": str(tmp_path)}
    assert ranks(["python", *SCRIPT], environ, parent) == ([], "")
    assert ranks(["python"], environ, parent) == ([], "")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--no_python", "python", "-X", "dev"], ["-X", "dev", "t.py"]),
        (["--no_python", "python"], ["-c", "import torch"]),
    ],
    ids=["options of Python", "a text"],
)
def test_a_process_that_cannot_become_ranks_says_that_it_trains_alone(options: list[str], line: list[str]) -> None:
    program = line[-2:] if "-c" in line else line[-1:]
    launch, said = ranks(["python", *line], {}, [*ACCELERATE, "--num_processes=3", *options, *program])
    assert launch == []
    assert said.startswith("warning: ")
    assert "not 3" in said
    assert "--nproc-per-node" in said


def test_the_processes_of_several_machines_are_left_to_run_which_refuses_them() -> None:
    parent = [*ACCELERATE, "--num_machines=2", "--num_processes", "4", "train.py"]
    assert ranks(["python", "train.py"], {}, parent)[0] == ["run", "train.py"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("default_config.yaml", "distributed_type: MULTI_CPU\nnum_machines: 1\nnum_processes: 2\nuse_cpu: true\n"),
        ("default_config.json", '{\n  "num_machines": 1,\n  "num_processes": 2\n}'),
    ],
    ids=["yaml", "json"],
)
def test_the_number_may_be_in_accelerates_file(name: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / "accelerate" / name
    file.parent.mkdir()
    file.write_text(text)
    line = ["python", "train.py"]
    wanted = [*LAUNCH, "train.py"]
    named = [*ACCELERATE, "--config_file", str(file)]
    assert ranks(line, {}, [*named, "train.py"])[0] == wanted
    assert ranks(line, {}, [*named, "--num_processes=1", "train.py"])[0] == []
    assert ranks(line, {"HF_HOME": str(tmp_path)}, [*ACCELERATE, "train.py"])[0] == wanted
    assert ranks(line, {"HF_HOME": str(tmp_path)}, [*ACCELERATE, "--config_file=none", "train.py"])[0] == []
