"""The bootstrap, in a small checkout of its own: one lock, one module that tells what reached it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tooling.paths import ROOT

TELLER = """
import json, os, sys
print(json.dumps({"argv": sys.argv[1:], "inv_cwd": os.environ["INV_CWD"], "prefix": sys.prefix}))
"""
NEEDED = ("bash", "cat", "dirname", "env", "flock", "grep", "id", "mkdir", "readlink", "sha256sum")


class Checkout:
    """A copy of ./inv beside a lock without packages, so that nothing is downloaded."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lock = root / "tooling" / "requirements.txt"
        self.lock.parent.mkdir(parents=True)
        self.lock.write_text("# no package\n")
        (root / "tooling" / "__main__.py").write_text(TELLER)
        shutil.copy(ROOT / "inv", root / "inv")

    def start(
        self, argv: Sequence[str] = (), *, cwd: Path | None = None, environ: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.root / "inv", *argv],
            cwd=cwd or self.root,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *argv: str, cwd: Path | None = None) -> tuple[int, str, str]:
        process = self.start(argv, cwd=cwd)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout whose .venv was just made, by two calls at the same time."""
    checkout = Checkout(tmp_path_factory.mktemp("check out") / "project")
    both = [checkout.start(["first"]), checkout.start(["second"])]
    ends = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert [json.loads(out)["argv"] for out, _err in ends] == [["first"], ["second"]]
    assert sum(err.count("making .venv") for _out, err in ends) == 1
    return checkout


def test_a_finished_environment_is_not_made_again(ready: Checkout) -> None:
    code, out, err = ready.run()
    assert (code, err) == (0, "")
    assert json.loads(out)["prefix"] == str(ready.root / ".venv")


def test_arguments_arrive_as_they_were_typed(ready: Checkout) -> None:
    argv = ["up", "--", "train", "--x", "a 'b' \"c\"", "", "*"]
    assert json.loads(ready.run(*argv)[1])["argv"] == argv


def test_through_a_symlink_and_from_elsewhere_the_users_directory_is_told(ready: Checkout, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(ready.root / "inv")
    done = subprocess.run([link, "x"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["inv_cwd"] == str(tmp_path)


def test_an_install_that_fails_leaves_nothing_that_looks_finished(ready: Checkout) -> None:
    good = ready.lock.read_text()
    ready.lock.write_text("./no-such-package\n")
    code, out, err = ready.run()
    assert code not in (0, 2)
    assert out == ""
    assert "ERROR" in err
    assert not (ready.root / ".venv" / "stamp").exists()
    ready.lock.write_text(good)
    code, _out, err = ready.run()
    assert (code, err.count("making .venv")) == (0, 1)


def test_without_a_python_it_says_in_one_line_what_to_install(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path / "project")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in NEEDED:  # neither python3 nor apt-get is among them
        found = shutil.which(name)
        assert found
        (tools / name).symlink_to(found)
    process = checkout.start(environ={"PATH": str(tools)})
    out, err = process.communicate(timeout=60)
    last = err.strip().splitlines()[-1]
    assert (process.returncode, out) == (2, "")
    assert last.startswith("inv: found no Python >= 3.11 with venv; on Debian 12+")
    assert "sudo apt-get install python3 python3-venv" in last
    assert not (checkout.root / ".venv").exists()


def test_the_bootstrap_stays_short_and_ends_in_exec() -> None:
    lines = (ROOT / "inv").read_text().splitlines()
    assert len(lines) < 40
    assert "set -Eeuo pipefail" in lines
    assert lines[-1].startswith("exec ")
