"""Every command in a `sh` block of the README and of the pages in docs/ works unchanged."""

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import documents
from tests.cluster.conftest import inv
from tooling.basis.paths import ROOT
from tooling.cluster import demo
from tooling.engine import docker
from tooling.pins import parse

PIN = parse.load().pin()


def commands(page: Path) -> list[str]:
    blocks = re.findall(r"^ *```sh\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return [line.strip() for block in blocks for line in block.splitlines() if line.strip()]


README = commands(ROOT / "README.md")
# The README first, because commands of the pages use what ./inv demo has built and downloaded.
COMMANDS = [*README, *(line for page in sorted((ROOT / "docs").glob("*.md")) for line in commands(page))]
# The command that runs this test; the other tests cover it.
ITSELF = "./inv test"
# Other commands of docs/, which use an output folder, and what they print. The test gives them the demo's folder.
ON_OUTPUT = {" report /output": "/output/report.html", "pipeline(": "'label': "}
# What the output of a command must contain, in addition to exit code 0.
EXPECTED = {
    "./inv demo": ["demo: passed", "2 on 2 nodes, ccl, bf16"],
    "./inv doctor": ["BuildKit"],
    "./inv matrix": ["2.13.0+cpu"],
    "./inv build --pin 2.13": ["cpu-train-stack:2.13"],
    "./inv up --launcher mpirun --nodes 2 --name mpi --data examples -- run /data/allreduce.py": ["launcher | "],
    "./inv launch --hosts examples/hosts --dry-run -- train --train_file /data/t.csv --output_dir /output": [
        "--node-rank=2"
    ],
    "./inv logs --name sum": ["node-1 | rank 1 of 2 on node-1: the sum is 3"],
    "docker run --rm cpu-train-stack:2.13 train --help": ["--model_name_or_path"],
    "docker run --rm cpu-train-stack:2.13 train --print-config --bf16 --learning_rate 5e-5": [
        "bf16: true\n",
        "# seed: 42\n",
    ],
    "docker run --rm cpu-train-stack:2.13 doctor": ["allreduce ccl", "bf16", "libtcmalloc"],
    "docker run --rm cpu-train-stack:2.13 plan": ["OMP_NUM_THREADS", "libiomp5", "libtcmalloc"],
}


# What the output of a command with this beginning must contain.
BEGINNINGS = {
    "./inv plan-cluster": ["node-hours", "Recommended: 8 nodes"],
    "./inv manifest pytorchjob": ["kind: PyTorchJob"],
    "./inv manifest trainjob": ["kind: TrainJob", "kind: TrainingRuntime"],
    "./inv manifest mpijob": ["kind: MPIJob"],
}


def run(command: str, image: str) -> str:
    """The command's output. `docker run` gets the checkout's own tag: the shared tag may name another's image."""
    words = [image if word == PIN.shared_tag else word for word in shlex.split(command)]
    if words[0] == "./inv":
        result = inv(*words[1:], timeout=600)
    else:
        environ = {**os.environ, "IMAGE": image}  # for docker compose
        result = subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=600, cwd=ROOT, env=environ
        )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


def indented(text: str) -> str:
    """The `docker run` command of docs/ with this text, which is in no `sh` block."""
    lines = [
        line.strip() for page in (ROOT / "docs").glob("*.md") for line in page.read_text("utf-8").splitlines()
    ]
    (found,) = {line for line in lines if line.startswith("docker run ") and text in line}
    return found


def test_the_readme_begins_with_its_two_commands() -> None:
    assert README[:2] == ["./inv demo", ITSELF]


def test_every_command_with_an_expectation_is_documented() -> None:
    assert not set(EXPECTED) - set(COMMANDS)
    assert all(any(command.startswith(start) for command in COMMANDS) for start in BEGINNINGS)


@pytest.fixture
def shared_tag() -> Iterator[None]:
    """Restores the shared tag, which ./inv build moves to this checkout's image."""
    before = docker.find_image(PIN.shared_tag)
    yield
    after = docker.find_image(PIN.shared_tag)
    if before and after and before.id != after.id:
        subprocess.run(["docker", "tag", before.id, PIN.shared_tag], check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize("command", [command for command in COMMANDS if command != ITSELF])
def test_the_documented_command_works(command: str, image: str, shared_tag: None) -> None:
    output = run(command, image)
    beginnings = [texts for start, texts in BEGINNINGS.items() if command.startswith(start)]
    for text in [*EXPECTED.get(command, []), *(text for texts in beginnings for text in texts)]:
        assert text in output, output
    if "allreduce.py" in command:
        assert "rank 0 of 2" in output
        assert output.count("the sum is 3") == 2


def test_the_demo_has_written_its_result(image: str) -> None:
    document = json.loads((demo.FOLDERS[demo.CLASSIFICATION] / "result.json").read_text())
    assert documents.missing("result", document) == []
    assert (document["pin"], document["nodes"], document["world_size"]) == ("2.13", 2, 2)
    assert document["bf16"] is True
    assert document["image"].startswith("sha256:")
    assert document["metric_after"] - document["metric_before"] >= demo.CLEAR_RISE
    assert {"build", "start", "train"} <= document["seconds"].keys()


@pytest.mark.parametrize("text", ON_OUTPUT)
def test_a_documented_command_works_with_the_output_of_a_job(text: str, image: str) -> None:
    output = demo.FOLDERS[demo.CLASSIFICATION] / "output"
    command = indented(text).replace(PIN.shared_tag, image)
    command = command.replace('"$PWD/output:', f'"{output}:').replace(" ./output:", f" {output}:")
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert ON_OUTPUT[text] in done.stdout


def test_the_image_has_the_documented_command_for_downloads(image: str, tmp_path: Path) -> None:
    """Without a download: the command's help, which it prints only if it knows all options."""
    command = indented("hf download").replace(PIN.shared_tag, image).replace(" ./data:", f" {tmp_path}:")
    done = subprocess.run(
        ["bash", "-c", f"{command} --help"], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "--local-dir" in done.stdout
