"""Which Python processes of mpirun and srun become ranks of the image: scripts that would train alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cpu_train_stack import contract
from cpu_train_stack.cli import packages
from cpu_train_stack.rank import alone
from cpu_train_stack.rank.alone import adopted, report, warning, watch
from tests.unit.entrypoints.launcher_environments import recording

TRAINS = "import os\nimport torch.nn as nn\n"
LAUNCHED = ["intel-mpi-2021.18", "mpich-4.2", "open-mpi-4.1", "open-mpi-5.0", "srun-22.05", "srun-pmi2-22.05"]


def words(tmp_path: Path, text: str, name: str = "train.py") -> list[str]:
    (tmp_path / name).write_text(text)
    return ["python", str(tmp_path / name), "--lr", "1", "--"]


@pytest.mark.parametrize("name", LAUNCHED)
def test_a_script_that_would_train_alone_is_run(tmp_path: Path, name: str) -> None:
    line = words(tmp_path, TRAINS)
    assert adopted(line, recording(name), []) == line[1:]
    assert adopted([line[0], "-u", *line[1:]], recording(name), ["bash", "sh"]) == line[1:]


@pytest.mark.parametrize("name", ["sbatch-22.05", "torchrun-2.13", "launch-2.13"])
def test_a_process_that_is_no_rank_of_many_keeps_its_command(tmp_path: Path, name: str) -> None:
    assert adopted(words(tmp_path, TRAINS), recording(name), []) == []


def test_a_job_of_one_rank_and_a_rank_of_this_stack_keep_their_command(tmp_path: Path) -> None:
    line, rank = words(tmp_path, TRAINS), recording("intel-mpi-2021.18")
    assert adopted(line, {}, []) == []
    assert adopted(line, {**rank, "PMI_SIZE": "1", "PMI_RANK": "0"}, []) == []
    assert adopted(line, {**recording("srun-22.05"), "SLURM_STEP_NUM_TASKS": "1"}, []) == []
    assert adopted(line, {**rank, contract.TORCHRUN: "plain"}, []) == []
    assert adopted(line, {**rank, "RANK": "1"}, []) == []
    assert adopted(line, rank, ["bash", "python3.11"]) == []


@pytest.mark.parametrize(
    "text",
    [
        "print(1)\n",
        "# import torch\n'''\nimport torch\n'''\n",
        "import torch\nfrom mpi4py import MPI\n",
        "import torch, os\nos.environ['RANK'] = os.environ['PMI_RANK']\n",
        "import torch\ndef broken(:\n",
        "import torch\0\n",
        "",
    ],
    ids=["no torch", "text", "mpi4py", "its own rank", "a syntax error", "a zero byte", "empty"],
)
def test_a_script_that_does_not_train_alone_keeps_its_command(tmp_path: Path, text: str) -> None:
    assert adopted(words(tmp_path, text), recording("intel-mpi-2021.18"), []) == []


# The patch of a guide: a script of transformers that finds its rank itself.
PATCHED = """import os, sys
from transformers import HfArgumentParser
if "ccl" in sys.argv:
    os.environ["RANK"] = os.environ["PMI_RANK"]
"""


@pytest.mark.parametrize(
    ("text", "flags", "transformers", "runs"),
    [
        (PATCHED, "--xpu_backend ccl --no_cuda True", "5.24.0", True),
        (PATCHED, "--ddp_backend=ccl", "5.24.0", True),
        (PATCHED, "--ddp_backend gloo", "5.24.0", False),
        (PATCHED, "--xpu_backend ccl", "4.24.0", False),
        (PATCHED, "--lr 1", "5.24.0", False),
        (PATCHED, "--xpu_backend ccl", None, False),
        (PATCHED.replace("HfArgumentParser", "AutoModel"), "--no_cuda", "5.24.0", False),
        (f"{PATCHED}import horovod.torch\n", "--no_cuda", "5.24.0", False),
    ],
    ids=[
        "flags",
        "a value",
        "another value",
        "an older release",
        "no flag",
        "no transformers",
        "its own flag",
        "horovod",
    ],
)
def test_a_script_that_finds_its_rank_is_run_if_transformers_refuses_a_flag_of_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    flags: str,
    transformers: str | None,
    runs: bool,
) -> None:
    installed = {} if transformers is None else {"transformers": transformers}
    monkeypatch.setattr(packages, "versions", lambda _names: installed)
    line = [*words(tmp_path, text)[:2], *flags.split()]
    environ = recording("intel-mpi-2021.18")
    assert adopted(line, environ, []) == (line[1:] if runs else [])
    assert warning(line, environ, []) is None or runs


def test_files_beside_the_script_count(tmp_path: Path) -> None:
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / "__init__.py").write_text("import models\n")
    (tmp_path / "models.py").write_text("from transformers import Trainer\nimport steps\n")
    line = words(tmp_path, "def main():\n    import steps\n")
    assert adopted(line, recording("open-mpi-4.1"), []) == line[1:]


@pytest.mark.parametrize(
    "line",
    ["python -c pass", "python -m torch.distributed.run", "python -m", "python", "python a", "python -X dev"],
)
def test_other_command_lines_stay(line: str) -> None:
    for ask in (adopted, warning):
        assert not ask(line.split(), recording("intel-mpi-2021.18"), [])


def test_a_module_of_the_working_folder_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "package"
    package.mkdir()
    (package / "steps.py").write_text("import torch\n")
    (package / "__main__.py").write_text("from package import steps\n")
    (package / "plain.py").write_text("from ... import far\nprint(1)\n")
    (package / "own").mkdir()
    (package / "own" / "__main__.py").write_text("from .. import steps\n")
    (package / "beside.py").write_text("from .steps import main\n")
    runs_by_name = {
        "package": True,
        "package.steps": True,
        "package.own": True,
        "package.beside": True,
        "package.plain": False,
        "torch": False,
    }
    for name, runs in runs_by_name.items():
        line = ["python", "-m", name, "--lr", "1"]
        assert adopted(line, recording("srun-22.05"), []) == (line[1:] if runs else [])


@pytest.mark.parametrize("options", [["-X", "dev"], ["-W", "error"], ["-OO"], ["-Werror", "-u"], ["-I"]])
def test_a_rank_with_options_of_python_says_that_it_trains_alone(tmp_path: Path, options: list[str]) -> None:
    line, environ = words(tmp_path, TRAINS), recording("intel-mpi-2021.18")
    line[1:1] = options
    assert adopted(line, environ, []) == []
    said = warning(line, environ, [])
    assert said is not None
    assert " ".join(options) in said
    assert warning(line, environ, ["python3"]) is None
    assert warning(line, {**environ, contract.TORCHRUN: "plain"}, []) is None
    assert warning(["python", "-c", "import torch; train()"], environ, [])
    assert warning(["python", "-c", "import torch, mpi4py"], environ, []) is None


def test_a_script_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    line = words(tmp_path, f"\ufeff{TRAINS}")
    assert adopted(line, recording("srun-22.05"), []) == line[1:]


def test_packages_on_pythonpath_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "src" / "research"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "cli.py").write_text("from .model import main\n")
    (package / "model.py").write_text("import transformers\n")
    line = words(tmp_path, "from research.cli import main\n")
    assert adopted(line, recording("srun-22.05"), []) == []
    monkeypatch.setenv("PYTHONPATH", f":{tmp_path / 'src'}")
    assert adopted(line, recording("srun-22.05"), []) == line[1:]


HIDDEN = "from installed import main\nmain()\n"


@pytest.mark.parametrize(
    ("text", "known", "imported", "said"),
    [
        (HIDDEN, {}, (), True),
        (HIDDEN, {"RANK": "1"}, (), False),
        (HIDDEN, {}, ("mpi4py",), False),
        (f"{HIDDEN}# PMI_RANK\n", {}, (), False),
        (f"{HIDDEN}import horovod.torch\n", {}, (), False),
    ],
    ids=["alone", "sets RANK", "mpi4py", "its own rank", "horovod"],
)
def test_a_rank_whose_package_imports_torch_says_that_it_trains_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str,
    known: dict[str, str],
    imported: tuple[str, ...],
    said: bool,
) -> None:
    """At the import of torch. `known`, `imported`: what the program has set and imported by then."""
    hooks: dict[str, Callable[[object], None]] = {}
    monkeypatch.setattr(alone, "after_import", hooks.__setitem__)
    environ, line = recording("intel-mpi-2021.18"), words(tmp_path, text)
    assert adopted(line, environ, []) == []
    watch(line, environ, [])
    environ.update(known)
    for name in imported:
        monkeypatch.setitem(sys.modules, name, None)
    for hook in hooks.values():
        hook(None)
    assert ("train.py trains alone, on all of the data" in capsys.readouterr().err) is said


@pytest.mark.parametrize(("name", "is_watched"), [("package.train", True), ("torch.distributed.run", False)])
def test_installed_modules_are_watched_unless_they_are_launchers(
    monkeypatch: pytest.MonkeyPatch, name: str, is_watched: bool
) -> None:
    hooks: dict[str, Callable[[object], None]] = {}
    monkeypatch.setattr(alone, "after_import", hooks.__setitem__)
    for above in ([], ["python3"]):
        watch(["python", "-m", name], recording("srun-22.05"), above)
        assert bool(hooks) is (is_watched and not above)
        hooks.clear()


@pytest.mark.parametrize(
    ("error", "noted"),
    [
        (ImportError("cannot import name 'send_example_telemetry'", name="transformers.utils"), True),
        (ValueError("Some specified arguments are not used by the HfArgumentParser: ['--use_ipex']"), True),
        (TypeError("TrainingArguments.__init__() got an unexpected keyword argument 'no_cuda'"), True),
        (ModuleNotFoundError("No module named 'own'", name="own"), False),
        (ValueError("bad"), False),
    ],
    ids=["import", "flag", "argument", "own module", "own error"],
)
def test_an_older_script_gets_a_line_that_names_run(
    error: Exception, noted: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    report(type(error), error, None)
    printed = capsys.readouterr().err
    assert str(error) in printed
    assert ("`entrypoint run " in printed) is noted
