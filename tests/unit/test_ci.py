"""The GitHub workflows and the pre-commit hooks run what a developer runs."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tooling.basis.paths import ROOT
from tooling.checks import suite

WORKFLOWS = ROOT / ".github" / "workflows"


def commands(workflow: str) -> list[str]:
    jobs: dict[str, Any] = yaml.safe_load((WORKFLOWS / workflow).read_text(encoding="utf-8"))["jobs"]
    return [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]


def test_zizmor_finds_nothing_in_the_workflows() -> None:
    zizmor = Path(sys.executable).with_name("zizmor")
    argv = [str(zizmor), "--offline", "--no-progress", "--persona=pedantic", str(WORKFLOWS)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_workflows_run_the_suite_try_the_rows_and_look_for_advisories() -> None:
    assert commands("test.yaml") == [".ci/run"]
    listing, *row = commands("images.yaml")
    assert "./inv matrix --json" in listing
    assert row == ['./inv build --pin "$PIN"', './inv test --inside "$PIN"', './inv demo --pin "$PIN"']
    assert commands("advisories.yaml")[-1] == "./inv advisories --osv osv"


def test_the_pre_commit_hooks_are_the_checks_of_the_suite_with_the_locked_tools() -> None:
    """Hooks of .venv need no versions of their own."""
    document = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert [repository["repo"] for repository in document["repos"]] == ["local"]
    entries = [hook["entry"].split() for repository in document["repos"] for hook in repository["hooks"]]
    assert entries == [[".venv/bin/python", "-m", *check] for check in suite.CHECKS]
