"""A script as a single rank in a container: its arguments, its environment and its errors."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import containers
from tests.containers import RunInImage
from tests.image.rank_scripts import seen, usage_line

# Runs a rank while another process has torch's default port.
PORT_TAKEN = """
import socket, subprocess, sys
taken = socket.create_server(("", 29500))
sys.exit(subprocess.call(["entrypoint", "run", *sys.argv[1:]]))
"""


@pytest.fixture(scope="module")
def alone(image: str, rank_scripts: Path) -> dict[str, Any]:
    """What a single rank saw, without a network and beside a process that has port 29500."""
    options = ("--network", "none", "--volume", f"{rank_scripts}:/scripts:ro")
    argv = ("python", "-c", PORT_TAKEN, "/scripts/see.py", "--backend", "x", "-m")
    (rank,) = seen(containers.run(image, *argv, docker_args=options))
    return rank


def test_a_script_runs_as_main_with_its_arguments_and_folder(alone: dict[str, Any]) -> None:
    assert alone["argv"] == ["/scripts/see.py", "--backend", "x", "-m"]
    assert alone["name"] == "__main__"
    assert alone["main"]
    assert alone["path"] == "/scripts"
    assert alone["bars"] == "10"  # standard error is no terminal


def test_a_single_rank_can_create_a_group_of_one_without_a_network_or_a_free_port(alone: dict[str, Any]) -> None:
    assert not alone["had"]
    assert (alone["world_size"], alone["backend"], alone["total"]) == (1, "ccl", [1.0, 1.0, 1.0])
    assert alone["environment"] == {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


def test_a_job_of_one_rank_looks_like_a_plain_process_and_can_use_a_group(run: RunInImage) -> None:
    mount = ("--network", "none", "--volume", f"{Path(__file__).parent / 'scripts'}:/tests:ro")
    for command, how, own in (
        (("run",), "init", {"sum": ["ccl", 0, 1, [1.0, 1.0]]}),
        (("launch", "--nproc-per-node", "1", "--", "run"), "ddp", {"gradient": [[1.0, 1.0]]}),
    ):
        done = run(*command, "--quiet", "/tests/single_rank.py", how, docker_args=mount)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1]) == {
            "had_group": False,
            "rank": 0,
            "child": "",
            "mode": "not_parallel",
            "local_rank": 0,
            "wrapped": "BertForSequenceClassification",
            "kind": "DistributedType.NO",
            "group_after_training": False,
            **own,
        }


def test_the_training_process_has_its_preloads_and_its_children_do_not(
    beside_libraries: subprocess.CompletedProcess[str],
) -> None:
    (rank,) = seen(beside_libraries)
    assert rank["tcmalloc"]
    assert rank["iomp"]
    assert rank["child_preload"] == ""
    assert "warning" not in beside_libraries.stderr


def test_other_commands_are_not_preloaded(run: RunInImage) -> None:
    assert "libtcmalloc" not in run("cat", "/proc/self/maps").stdout


def test_a_missing_preload_is_a_warning_with_the_fix(run: RunInImage) -> None:
    hidden = "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"
    done = run("sh", "-c", f"rm -f {hidden}* && entrypoint run /scripts/see.py", docker_args=["--user", "root"])
    (rank,) = seen(done)
    assert not rank["tcmalloc"]
    assert "libtcmalloc-minimal4" in done.stderr


@pytest.mark.parametrize("variable", ["OMP_PLACES=cores", "OMP_PROC_BIND=close"])
def test_the_users_variables_place_threads_on_all_cores_of_the_rank(
    run: RunInImage, alone: dict[str, Any], variable: str
) -> None:
    """torch's libgomp reads these variables too, and binds the main thread to one core."""
    (placed,) = seen(run("env", variable, "entrypoint", "run", "--quiet", "/scripts/threads.py"))
    assert len(placed["cores"]) > 1 or len(alone["cores"]) == 1


def test_a_module_runs_as_main_beside_a_users_preload_which_its_children_keep(run: RunInImage) -> None:
    """The current folder is on its path."""
    own = "/lib/x86_64-linux-gnu/libBrokenLocale.so.1"
    options = ("--workdir", "/scripts", "--env", f"LD_PRELOAD={own}")
    (rank,) = seen(run("run", "-m", "see", "a", docker_args=options))
    assert rank["tcmalloc"]
    assert rank["child_preload"] == own
    assert rank["name"] == "__main__"
    assert rank["argv"] == ["/scripts/see.py", "a"]


def test_an_exceptions_traceback_starts_in_the_script(run: RunInImage) -> None:
    done = run("run", "/scripts/broken.py")
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert 'File "/scripts/broken.py", line 3' in done.stderr
    assert "runpy" not in done.stderr
    assert "/cpu_train_stack/" not in done.stderr


def test_the_exit_code_is_the_scripts(run: RunInImage) -> None:
    done = run("run", "--quiet", "/scripts/fail.py", "exit", "0")
    assert (done.returncode, done.stderr) == (3, "")


LIBRARIES = ("json", "pathlib", "argparse", "random", "torch")


@pytest.fixture(scope="module")
def beside_libraries(image: str, rank_scripts: Path) -> subprocess.CompletedProcess[str]:
    """A run in a folder with a file for each of LIBRARIES. Each file ends the process and names itself."""
    hide = "".join(f"echo 'raise SystemExit(\"imported {name}.py\")' >{name}.py && " for name in LIBRARIES)
    shell = f"cd /tmp && {hide} exec entrypoint run /scripts/see.py"
    return containers.run(image, "sh", "-c", shell, docker_args=["--volume", f"{rank_scripts}:/scripts:ro"])


@pytest.mark.parametrize("name", LIBRARIES)
def test_files_in_the_current_folder_do_not_hide_libraries(
    beside_libraries: subprocess.CompletedProcess[str], name: str
) -> None:
    assert f"imported {name}.py" not in beside_libraries.stderr
    (rank,) = seen(beside_libraries)
    assert rank["world_size"] == 1


NAMED = """
mkdir -p /tmp/file /tmp/folder/entrypoints && cd /tmp/file && export PYTHONPATH=/tmp/folder
for file in entrypoints.py ../folder/entrypoints/__init__.py ../folder/entrypoints/__main__.py; do
    echo 'raise SystemExit("hidden")' >$file
done
entrypoint plan --json
entrypoint train --model_name_or_path /none --train_file /none.csv --output_dir /tmp/o
echo "train: $?"
cd / && unset PYTHONPATH
python -c 'import importlib.util as found; print(*map(found.find_spec, ("entrypoints", "kernels")))'
"""


def test_the_packages_entrypoints_and_kernels_of_pypi_are_not_in_the_stacks_way(run_in_image: RunInImage) -> None:
    """As a file in the working folder, and as a folder on PYTHONPATH. Without them, nothing has these names."""
    done = run_in_image("sh", "-c", NAMED)
    plan, _, rest = done.stdout.rpartition("}\n")
    assert json.loads(plan + "}"), done.stderr
    assert rest == "train: 2\nNone None\n"
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert "'/none" in line


def test_an_unknown_backend_is_one_line_with_the_choices(run: RunInImage) -> None:
    assert "'smoke' is not in this image, expected one of: ccl, gloo" in usage_line(
        run("run", "--backend", "smoke", "/scripts/see.py")
    )


def test_a_missing_script_is_one_line(run: RunInImage) -> None:
    assert "'/scripts/none.py' is not a file" in usage_line(run("run", "/scripts/none.py"))
