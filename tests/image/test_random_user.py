"""The image as OpenShift runs it: a user id that no file knows, a read-only root file system, no capabilities.

Two containers run sshd, without a folder for temporary files but /dev/shm; each command is one more process in the
first.
"""

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests import containers
from tooling.cluster import keys
from tooling.engine import docker

RIGHTS = ("--user=1234567:0", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges")


@pytest.fixture(scope="module")
def nodes(image: str, train_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The containers' names. /output belongs to group 0, which OpenShift gives to such users."""
    output, secret = tmp_path_factory.mktemp("output"), tmp_path_factory.mktemp("keys")
    output.chmod(0o775)
    secret.chmod(0o755)
    private, public = keys.pair()
    for file, text in (("id_ed25519", private), ("id_ed25519.pub", public), ("authorized_keys", public)):
        (secret / file).write_text(text)
    volumes = (f"--volume={train_data}:/data:ro", f"--volume={output}:/output", f"--volume={secret}:/run/keys:ro")
    network, *names = (containers.unique_name() for _ in range(3))
    with ExitStack() as stack:
        docker.output("network", "create", network)
        stack.callback(docker.output, "network", "rm", network)
        for name in names:
            options = (f"--name={name}", f"--hostname={name}", f"--network={network}", "--shm-size=1g")
            stack.callback(docker.output, "rm", "--force", "--volumes", name)
            docker.output("run", "--detach", *options, *RIGHTS, *volumes, image, "sshd")
        yield names


@pytest.fixture
def container(nodes: list[str]) -> str:
    return nodes[0]


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


def test_ranks_on_two_nodes_train_over_ssh(nodes: list[str], container: str) -> None:
    model = ("--model_name_or_path=/data/tiny", "--train_file=/data/train.csv", "--output_dir=/output/mpirun")
    mpirun = ("mpi-launch", f"--hosts={','.join(nodes)}", "--timeout=30")
    works(container, *mpirun, "--", "train", *model, "--max_steps=2", "--max_seq_length=32")
    result: dict[str, Any] = json.loads(works(container, "cat", "/output/mpirun/result.json"))
    found = (result["world_size"], result["nodes"], result["launcher"], len(set(result["weights_sha256"])))
    assert found == (2, 2, "hydra", 1)


def test_a_rank_of_mpirun_has_none_of_the_variables_of_ssh(container: str) -> None:
    code = "import os; print([name for name in os.environ if name.startswith(('NSS_', 'LD_'))])"
    shown = works(container, "mpi-launch", "--hosts=localhost", "--timeout=30", "--", "python", "-c", code)
    assert shown.startswith("[0] []")


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
