"""A disk that is full when the training ends."""

from pathlib import Path

import pytest

from tests.containers import RunInImage
from tests.image.train_runs import line


@pytest.mark.parametrize(
    ("size", "flags", "what", "left"),
    [
        ("100k", (), "the final weights", False),
        ("160k", ("--use_peft", "--lora_r", "2", "--merge_adapter"), "the merged model", True),
    ],
)
def test_a_full_disk_at_the_end_is_reported_in_one_line(
    run_in_image: RunInImage, train_data: Path, size: str, flags: tuple[str, ...], what: str, left: bool
) -> None:
    """The result is written before the adapter is merged."""
    steps = {"max_steps": 2, "num_train_epochs": None, "eval_strategy": "no", "validation_file": None}
    shell = 'entrypoint train "$@"; code=$?; ls -A /full/run; exit $code'
    mount = ("--volume", f"{train_data}:/data:ro", "--tmpfs", f"/full:size={size},mode=1777")
    done = run_in_image("sh", "-c", shell, "sh", *line("/full/run", **steps), *flags, docker_args=mount)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    error = next(text for text in done.stderr.splitlines() if text.startswith("error: "))
    assert f"--output_dir '/full/run' is full, expected space for {what} (" in error
    assert ("result.json" in done.stdout.split()) == left
    assert ("adapter_model.safetensors" in done.stdout.split()) == left
    assert not {".merged", "merged", "model.safetensors"} & set(done.stdout.split())
