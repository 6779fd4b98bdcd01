"""The functions of tests.containers, which the other tests use."""

import subprocess
from pathlib import Path

import pytest

from tests import containers
from tests.containers import RunInImage
from tooling.cluster import pretrained


def test_a_command_that_does_not_end_is_killed_and_its_container_removed(run_in_image: RunInImage) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run_in_image("sleep", "60", docker_args=["--entrypoint", ""], timeout=2)
    assert containers.left_behind() == []


def test_a_container_that_still_runs_counts_as_left_behind(image: str) -> None:
    name = containers.unique_name()
    subprocess.run(["docker", "run", "--detach", "--name", name, "--entrypoint", "sleep", image, "60"], check=True)
    try:
        assert containers.left_behind() == [name]
    finally:
        subprocess.run(["docker", "rm", "--force", name], check=True)


def test_the_images_user_reads_the_model_and_writes_into_the_output_folder(
    run_in_image: RunInImage, model_folder: Path, output_folder: Path
) -> None:
    assert pretrained.complete(model_folder, pretrained.MINILM)
    result = run_in_image(
        "sh", "-c", "cat /model/* > /output/copy",
        docker_args=["-v", f"{model_folder}:/model:ro", "-v", f"{output_folder}:/output", "--entrypoint", ""],
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")
    assert (output_folder / "copy").stat().st_size == sum(path.stat().st_size for path in model_folder.iterdir())
