"""The image as OpenShift runs it: a user id that no file knows, a read-only root file system, no capabilities.

One container without a folder for temporary files but /dev/shm; each command is one more process in it.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import containers

RIGHTS = ("--user=1234567:0", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges")


@pytest.fixture(scope="module")
def container(image: str, train_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The container's name. /output belongs to group 0, which OpenShift gives to such users."""
    name, output = containers.unique_name(), tmp_path_factory.mktemp("output")
    output.chmod(0o775)
    volumes = (f"--volume={train_data}:/data:ro", f"--volume={output}:/output")
    start = ("docker", "run", "--detach", f"--name={name}", "--shm-size=1g", *RIGHTS, *volumes)
    subprocess.run([*start, image, "sleep", "infinity"], check=True, capture_output=True, timeout=60)
    try:
        yield name
    finally:
        subprocess.run(["docker", "rm", "--force", "--volumes", name], check=True, capture_output=True, timeout=60)


def works(container: str, *command: str) -> str:
    done = subprocess.run(
        ["docker", "exec", container, "entrypoint", *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=containers.TIMEOUT_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_two_ranks_train(container: str) -> None:
    model = ("--model_name_or_path=/data/tiny", "--train_file=/data/train.csv", "--output_dir=/output/run")
    works(container, "launch", "--nproc-per-node=2", "--", "train", *model, "--max_steps=2", "--max_seq_length=32")
    result: dict[str, Any] = json.loads(works(container, "cat", "/output/run/result.json"))
    assert (result["world_size"], result["backend"], len(set(result["weights_sha256"]))) == (2, "ccl", 1)


def test_the_doctor_warns_only_about_temporary_files(container: str) -> None:
    checks = json.loads(works(container, "doctor", "--json"))["checks"]
    statuses = {check["name"]: check["status"] for check in checks}
    assert statuses["temporary files"] == "warning"
    assert "error" not in statuses.values(), checks


def test_collectives_are_measured(container: str) -> None:
    measured = works(container, "bench", "collectives", "--sizes=4K", "--seconds=0.1", "--json")
    assert {row["backend"] for row in json.loads(measured)["rows"]} >= {"ccl", "gloo"}


def test_python_has_the_variables_of_a_user(container: str) -> None:
    code = (
        "import getpass, pathlib, tempfile; print(getpass.getuser(), pathlib.Path.home(), tempfile.gettempdir())"
    )
    assert works(container, "python", "-c", code).split() == ["user-1234567", "/dev/shm", "/dev/shm"]
