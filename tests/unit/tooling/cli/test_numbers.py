"""Numbers that mean nothing: every option of ./inv has a largest number, and needs no engine to say so."""

from pathlib import Path

import pytest

import tasks
from tests.unit.tooling.cli.program import run
from tooling.engine import api
from tooling.image.choice import Choice

WRONG = ("nan", "inf", "-1", "1e999", "99999999999999999999")
COMMANDS = {
    "up": ("nodes", "ranks-per-node", "max-restarts"),
    "demo": ("nodes", "ranks-per-node"),
    "launch": ("port", "ranks-per-node"),
    "bench collectives": ("nodes", "ranks", "seconds"),
    "bench scaling": ("nodes", "seconds", "ratio", "cores"),
    "bench launch": ("ranks", "rounds", "steps"),
    "bench train": ("repeats", "steps", "seconds", "ranks"),
    "manifest slurm": ("nodes", "ranks-per-node", "cpus", "max-restarts"),
    "manifest pytorchjob": ("nodes", "cpus", "max-restarts", "node-cpus", "ranks-per-node"),
    "manifest runtime": ("nodes", "cpus", "max-restarts"),
    "plan-cluster": ("nodes", "epochs", "cores", "ghz", "efficiency", "batch-size"),
    "dev soak": ("jobs", "nodes"),
    "dev conformance": ("ranks",),
    "dev differential": ("cases", "seconds"),
}
CASES = [(command, option) for command, options in COMMANDS.items() for option in options]


@pytest.mark.parametrize(("command", "option"), CASES, ids=map("-".join, CASES))
def test_a_number_that_means_nothing_is_refused_in_one_line(
    command: str,
    option: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def started(*_: object, **__: object) -> None:
        raise AssertionError(f"{command} starts with --{option} {value}")

    monkeypatch.setattr(Choice, "ensure", started)
    monkeypatch.setattr(api, "ensure", started)
    rest = ["--", "train"] if command in ("up", "launch", "manifest slurm", "manifest pytorchjob") else []
    rest = (
        ["--model=bert-base", "--samples=9000", "--single-node-samples-per-second=9"]
        if command == "plan-cluster"
        else rest
    )
    if command == "launch":
        (tmp_path / "hosts").write_text("node-a\n")
        rest = [f"--hosts={tmp_path / 'hosts'}", *rest]
    named = (
        "" if command in ("demo", "plan-cluster") else option
    )  # the ranks share a batch, a forecast has no limits
    for value in WRONG:
        argv = [*command.split(), f"--{option}={value}", *rest]
        code, out, err = run(tasks.SECTIONS, argv, capsys)
        assert (code, out, err.count("\n"), named in err) == (2, "", 1, True), (argv, code, out, err)
