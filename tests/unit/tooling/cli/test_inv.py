"""The bootstrap, in a small separate checkout: one lock, and one module that prints its arguments."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pip
import pytest

from tests.forks import Forks
from tooling.basis.paths import ROOT

PRINTER = """
import json, os, sys
if "--streams" in sys.argv:
    with open(sys.argv[-1], "w") as file:
        json.dump([os.readlink(f"/proc/self/fd/{number}") for number in range(3)], file)
else:
    print(json.dumps({"argv": sys.argv[1:], "inv_cwd": os.environ["INV_CWD"], "prefix": sys.prefix}))
"""
# A `python3` whose environments share the pip of the tests, because `python -m venv` takes seconds to install pip.
QUICK_PYTHON = f"""#!/bin/sh
if [ "$1 $2 $3" = "-m venv --clear" ]; then
    "{sys.executable}" -m venv --clear --without-pip "$4" &&
        ln -s "{Path(pip.__file__).parent}" "$4"/lib/python3.*/site-packages/
else
    exec "{sys.executable}" "$@"
fi
"""
NEEDED = ("bash", "cat", "dirname", "env", "flock", "grep", "id", "mkdir", "readlink", "sha256sum")


class Checkout:
    """A copy of ./inv beside a lock without packages, so that nothing is downloaded."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lock = root / "tooling" / "requirements.txt"
        self.lock.parent.mkdir(parents=True)
        self.lock.write_text("# no package\n")
        (root / "tooling" / "__main__.py").write_text(PRINTER)
        shutil.copy(ROOT / "inv", root / "inv")
        quick = root / "bin" / "python3"
        quick.parent.mkdir()
        quick.write_text(QUICK_PYTHON)
        quick.chmod(0o755)
        self.environ = {**os.environ, "PATH": f"{quick.parent}:{os.environ['PATH']}"}

    def start(
        self, argv: Sequence[str] = (), *, environ: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.root / "inv", *argv],
            cwd=self.root,
            env=self.environ if environ is None else environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *argv: str, **variables: str) -> tuple[int, str, str]:
        process = self.start(argv, environ={**self.environ, **variables})
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout whose .venv was just created, by two calls at the same time."""
    checkout = Checkout(tmp_path_factory.mktemp("check out") / "project")
    both = [checkout.start(["first"]), checkout.start(["second"])]
    ends = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert [json.loads(out)["argv"] for out, _err in ends] == [["first"], ["second"]]
    assert sum(err.count("creating .venv") for _out, err in ends) == 1
    return checkout


def test_a_finished_environment_is_not_created_again(ready: Checkout) -> None:
    code, out, err = ready.run()
    assert (code, err) == (0, "")
    assert json.loads(out)["prefix"] == str(ready.root / ".venv")


def test_arguments_are_passed_on_unchanged(ready: Checkout) -> None:
    argv = ["up", "--", "train", "--x", "a 'b' \"c\"", "", "*"]
    assert json.loads(ready.run(*argv)[1])["argv"] == argv


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_empty_ones(ready: Checkout, closed: str, tmp_path: Path) -> None:
    """Otherwise, a file that is opened next would take the place of one."""
    argv = ["bash", "-c", f"'{ready.root / 'inv'}' --streams '{tmp_path / 'found'}' {closed}"]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    found = json.loads((tmp_path / "found").read_text())
    expected = [os.devnull if sign in f" {closed}" else "pipe" for sign in (" >&-", " 2>&-")]
    assert [name.partition(":")[0] for name in found] == [os.devnull, *expected]


def test_the_users_folder_is_passed_on_through_a_symlink(ready: Checkout, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(ready.root / "inv")
    done = subprocess.run([link, "x"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["inv_cwd"] == str(tmp_path)


def test_an_environment_is_created_whatever_the_user_has_set_and_after_a_failed_install(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path / "project")
    good = checkout.lock.read_text()
    others = tmp_path / "others"
    (others / "json").mkdir(parents=True)
    (others / "json" / "__init__.py").write_text("raise ImportError('of another Python')")
    (tmp_path / "pip.conf").write_text("[install]\nuser = true\n")
    variables = {"PYTHONPATH": str(others), "PYTHONSAFEPATH": "1", "PYTHONHOME": str(others), "PIP_USER": "1"}
    variables |= {"PIP_TARGET": str(others), "PIP_PREFIX": str(others)}
    code, out, err = checkout.run(**variables)
    assert (code, err.count("creating .venv")) == (0, 1), err
    assert json.loads(out)["prefix"] == str(checkout.root / ".venv")

    checkout.lock.write_text(f"no-such-package==1 --hash=sha256:{'0' * 64}\n")
    index = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "1", "PIP_CONFIG_FILE": os.devnull}
    code, out, err = checkout.run(**index, no_proxy="127.0.0.1")
    assert (code, out) == (2, "")
    assert "ERROR" in err
    assert "Connection refused" in err
    assert err.splitlines()[-1].startswith("inv: pip failed: check network, proxy and pip's configuration")
    assert not (checkout.root / ".venv" / "stamp").exists()

    checkout.lock.write_text(good)
    code, out, err = checkout.run(PIP_CONFIG_FILE=str(tmp_path / "pip.conf"))
    assert (code, err.count("creating .venv")) == (0, 1), err
    assert json.loads(out)["prefix"] == str(checkout.root / ".venv")


def test_files_that_root_writes_for_containers_are_readable_for_their_user(python: Forks) -> None:
    code = """
import atexit, os, runpy, sys
os.umask(0o077)
atexit.register(lambda: print(f"{os.umask(0):o}"))
sys.argv = ["inv", "--list"]
runpy.run_module("tooling")
"""
    done = python.run(["-c", code], ROOT)
    assert done.stdout.splitlines()[-1] == ("22" if os.geteuid() == 0 else "77"), done.stderr


def test_a_current_folder_that_was_deleted_is_one_line(tmp_path: Path, python: Forks) -> None:
    environ = {**os.environ, "INV_CWD": str(tmp_path / "deleted")}
    done = python.run(["-m", "tooling", "--list"], ROOT, environ)
    line = f"{tmp_path}/deleted: No such file or directory: change to a folder that you can read\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)


def test_a_package_that_is_missing_in_the_environment_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "invoke.py").write_text("import no_such\n")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    argv = [sys.executable, "-m", "tooling", "--list"]
    done = subprocess.run(argv, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60, check=False)
    line = "inv: No module named 'no_such', expected it in .venv: delete .venv, and run the same command again\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)


def test_a_package_that_a_task_needs_later_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "yaml.py").write_text("import no_such\n")
    (tmp_path / "docker.py").write_text("import no_such\n")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "INV_CWD": str(tmp_path)}
    line = "inv: No module named 'no_such', expected it in .venv: delete .venv, and run the same command again\n"
    for arguments in (["matrix"], ["status"]):
        argv = [sys.executable, "-m", "tooling", *arguments]
        done = subprocess.run(argv, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", line)
        (tmp_path / "yaml.py").unlink(missing_ok=True)


@pytest.mark.parametrize("arguments", [["--list"], ["verify", "--help"]], ids=" ".join)
def test_a_character_set_without_an_ellipsis_is_enough(arguments: list[str]) -> None:
    environ = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    argv = [sys.executable, "-m", "tooling", *arguments]
    done = subprocess.run(argv, cwd=ROOT, env=environ, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"sha256:\u2026" in done.stdout


def test_a_checkout_that_cannot_be_written_to_is_one_line(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path / "project")
    (checkout.root / ".cache").touch()  # root may write to every folder
    line = f"inv: cannot write to {checkout.root}/.cache: become the owner of the checkout, or use a copy of it\n"
    assert checkout.run() == (2, "", line)


@pytest.mark.parametrize("uid", [0, 1000])
def test_without_python_the_error_names_the_packages_to_install(tmp_path: Path, uid: int) -> None:
    checkout = Checkout(tmp_path / "project")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in NEEDED:  # neither python3 nor apt-get is among them
        found = shutil.which(name)
        assert found
        (tools / name).symlink_to(found)
    (tools / "id").unlink()
    (tools / "id").write_text(f"#!/bin/sh\necho {uid}\n")
    (tools / "id").chmod(0o755)
    process = checkout.start(environ={"PATH": str(tools)})
    out, err = process.communicate(timeout=60)
    last = err.strip().splitlines()[-1]
    assert (process.returncode, out) == (2, "")
    assert last.startswith("inv: found no Python >= 3.11 with venv; on Debian 12+")
    assert "sudo apt-get install python3 python3-venv" in last
    assert not (checkout.root / ".venv").exists()


def test_the_bootstrap_stays_short_and_ends_in_exec() -> None:
    lines = (ROOT / "inv").read_text().splitlines()
    assert len(lines) < 45
    assert "set -Eeuo pipefail" in lines
    assert lines[-1].startswith("exec ")
