"""Debian's own Open MPI and MPICH start the same command line as the launchers in the image."""

import json
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import containers

PACKAGES = "openmpi-bin mpich"
# No labels of the pin: this is a test's image, and goes with it.
DOCKERFILE = """
FROM {image}
USER 0
RUN apt-get update -q && apt-get install -q -y --no-install-recommends {packages}
"""
ROWS = "text,label\n" + "".join(f"{word} film,{number % 2}\n" for number, word in enumerate("abcdefgh"))


def docker(*arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False, timeout=timeout)


@pytest.fixture(scope="module")
def node(image: str, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A container with both launchers, a tiny model at /tiny and eight rows at /job."""
    tag, name = f"{containers.unique_name()}:foreign", containers.unique_name()
    recipe = DOCKERFILE.format(image=image, packages=PACKAGES)
    context = tmp_path_factory.mktemp("foreign")
    (context / "Dockerfile").write_text(recipe)
    try:
        built = docker("build", "--quiet", "--tag", tag, str(context), timeout=600)
        assert built.returncode == 0, built.stderr
        options = ("--user=0", "--hostname=node-0", "--shm-size=1g", "--entrypoint=sleep")
        model = f"--volume={tiny_model}:/tiny:ro"
        started = docker("run", "--detach", "--rm", f"--name={name}", *options, model, tag, "900")
        assert started.returncode == 0, started.stderr
        files = f"install -d -m 0777 /job && printf '%s' '{ROWS}' > /job/rows.csv"
        made = docker("exec", name, "sh", "-c", files)
        assert made.returncode == 0, made.stderr
        yield name
    finally:
        docker("rm", "--force", "--volumes", name)
        docker("rmi", "--force", tag)


def command(output: str, *flags: str) -> tuple[str, ...]:
    return (
        *("entrypoint", "train", "--model_name_or_path=/tiny", "--train_file=/job/rows.csv", "--do_train"),
        *(f"--output_dir={output}", "--per_device_train_batch_size=2", "--eval_strategy=no", *flags),
    )


def train(node: str, launcher: str, *start: str) -> None:
    """Two ranks train a step, and report the launcher and their number."""
    output = f"/tmp/{launcher.replace(' ', '-')}"
    job = command(output, "--max_steps=1", "--save_strategy=no")
    done = docker("exec", "--user=1000", "--env=HF_HUB_OFFLINE=1", node, *start, *job)
    assert done.returncode == 0, done
    result = json.loads(docker("exec", node, "cat", f"{output}/result.json").stdout)
    assert (result["launcher"], result["world_size"], result["nodes"]) == (launcher, 2, 1)
    assert len(set(result["weights_sha256"])) == 1


def test_open_mpi_starts_two_ranks(node: str) -> None:
    train(node, "Open MPI", "mpirun.openmpi", "--oversubscribe", "-n", "2")


def test_mpich_starts_two_ranks(node: str) -> None:
    train(node, "hydra", "mpirun.mpich", "-n", "2")


# Open MPI gives its ranks one second.
OPEN_MPI = ("mpirun.openmpi", "--oversubscribe", "--mca", "odls_base_sigkill_timeout", "30", "-n", "2")


@pytest.mark.parametrize(
    "start",
    [
        OPEN_MPI,
        ("mpirun.mpich", "-n", "2"),
        ("python", "-m", "torch.distributed.run", "--nproc-per-node=2", "--no-python"),
    ],
    ids=["Open MPI", "MPICH", "torchrun"],
)
def test_ranks_save_a_checkpoint_after_sigterm(node: str, start: tuple[str, ...]) -> None:
    output = f"/tmp/ended-by-{start[0]}"
    job = command(output, "--max_steps=100000", "--save_steps=100000", "--logging_steps=5")
    line = shlex.join([*start, *job])
    argv = ("docker", "exec", "--user=1000", "--env=HF_HUB_OFFLINE=1", node)
    with subprocess.Popen(
        [*argv, "sh", "-c", f"echo $$ > {output}.pid; exec {line}"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as ranks:  # fmt: skip
        assert ranks.stdout is not None
        shown, is_asked = "", False
        for text in ranks.stdout:
            shown += text
            if text.startswith("step ") and not is_asked:
                is_asked = docker("exec", node, "sh", "-c", f"kill -TERM $(cat {output}.pid)").returncode == 0
    assert "stopped at step" in shown, shown
    assert docker("exec", node, "sh", "-c", f"ls {output}").stdout.count("checkpoint-") == 1, shown
