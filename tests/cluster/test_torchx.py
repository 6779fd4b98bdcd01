"""TorchX starts the component of examples/ on two local containers, which train together."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from torchx import specs
from torchx.runner import get_runner

from tests.image.train_runs import reviews
from tooling.basis.paths import ROOT
from tooling.engine import docker

COMPONENT = f"{ROOT / 'examples' / 'torchx_train.py'}:nodes"
NETWORK, LABEL = "torchx", "torchx.pytorch.org/app-id"


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Remove the network that TorchX creates and keeps, unless the user already has it."""
    had = bool(docker.output("network", "ls", "--quiet", f"--filter=name=^{NETWORK}$"))
    yield
    if not had:
        subprocess.run(["docker", "network", "rm", NETWORK], capture_output=True, check=False, timeout=60)


def test_a_component_trains_on_two_containers(image: str, tiny_model: Path, output_folder: Path) -> None:
    (output_folder / "train.csv").write_text(reviews(22))
    argv = [
        *(f"--image={docker.read_image(image).id}", "--num_nodes=2", "--ranks_per_node=1", "--cpus=1"),
        *(f"--data={tiny_model}", f"--output={output_folder}", "--", "train", "--model_name_or_path=/data"),
        *("--train_file=/output/train.csv", "--output_dir=/output/$(job)", "--max_steps=2", "--max_seq_length=32"),
    ]
    with get_runner() as runner:
        app = runner.run_component(COMPONENT, argv, scheduler="local_docker")
        name = app.rpartition("/")[2]
        try:
            status = runner.wait(app, wait_interval=1)
            logs = "".join(runner.log_lines(app, "node", 0))
        finally:
            listed = docker.output("ps", "--all", "--quiet", f"--filter=label={LABEL}={name}").split()
            docker.call("rm", "--force", "--volumes", *listed)
    assert status is not None
    assert status.state == specs.AppState.SUCCEEDED, logs
    found = json.loads((output_folder / "$(job)" / "result.json").read_text())
    assert (found["world_size"], found["nodes"], found["launcher"], found["backend"]) == (2, 2, "torchrun", "ccl")
    assert len(set(found["weights_sha256"])) == 1
    assert (output_folder / "$(job)" / "_job").read_text().startswith(f"torchx/{name}")
