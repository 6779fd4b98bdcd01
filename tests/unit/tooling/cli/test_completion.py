"""Shell completion of ./inv, in a real bash."""

import shlex
import subprocess
from pathlib import Path

import pytest

import tasks
from cpu_train_stack.cli.errors import UsageError
from tests.unit.tooling.cli.program import run
from tooling.basis.paths import ROOT
from tooling.cli import completion

# What is typed, its last word unfinished -> what is offered.
TYPED = {
    ("./inv", "mat"): "matrix",
    ("./inv", "up", "--ranks"): "--ranks-per-node",
    ("../project/inv", "bench", "coll"): "collectives",
    ("./inv", "bench", "collectives", "--js"): "--json",
    ("./inv", "dev", "fau"): "faults",
    ("./inv", "up", "--", "train", "--no"): "",
}
# Those that bash completes: each starts ./inv.
IN_BASH = [("../project/inv", "bench", "coll"), ("./inv", "up", "--", "train", "--no")]


@pytest.mark.parametrize("words", TYPED, ids=" ".join)
def test_tasks_and_options_are_candidates(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """As the shells' scripts, which pass the complete command line and choose the candidates with the prefix."""
    code, out, err = run(tasks.SECTIONS, ["--complete", "--", *words], capsys)
    assert (code, err) == (0, "")
    assert " ".join(name for name in out.split() if name.startswith(words[-1])) == TYPED[words]


def test_bash_completes_tasks_and_options_without_inv_on_the_path(tmp_path: Path) -> None:
    """The README's line, from another folder."""
    lines = [f"source <({ROOT}/inv --print-completion-script bash)", "complete -p inv"]
    for number, words in enumerate(IN_BASH):  # in parallel
        typing = f"COMP_WORDS=({shlex.join(words)}); _complete_inv inv {words[-1]}"
        lines.append(f'({typing}; echo "${{COMPREPLY[*]}}" >{number}) &')
    script = "\n".join([*lines, "wait", *(f"cat {number}" for number in range(len(IN_BASH)))])
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=True, timeout=60, cwd=tmp_path
    )
    how, *offered = done.stdout.splitlines()
    assert how == "complete -o default -F _complete_inv inv"  # of ./inv and of every other path to it too
    assert offered == [TYPED[words] for words in IN_BASH]
    assert done.stderr == ""


def test_the_line_is_in_the_readme() -> None:
    assert "source <(./inv --print-completion-script bash)" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_the_script_of_each_shell_runs_inv_of_this_checkout(shell: str) -> None:
    script = completion.script(shell, Path("/a b/inv"))
    (asking,) = [line for line in script.splitlines() if "--complete --" in line]
    assert "'/a b/inv' " in asking
    assert "_complete_inv" in script


def test_an_unknown_shell_is_an_error_with_the_choices() -> None:
    with pytest.raises(UsageError, match="'tcsh': expected bash, zsh, fish"):
        completion.script("tcsh", Path("/inv"))


def test_the_tasks_of_a_group_are_completed_after_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    def offered(*words: str) -> list[str]:
        return run(tasks.SECTIONS, ["--complete", "--", "./inv", *words], capsys)[1].split()

    every = offered()
    assert {"bench", "dev", "build", "up"} <= {*every}
    assert [name for name in every if "." in name] == []
    assert offered("b") == offered("up", "be") == every
    assert offered("bench") == offered("bench", "la") == [*tasks.BENCH.task_names]
