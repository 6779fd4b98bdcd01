"""Frozen weights are in memory once, and `train` prints the memory that it needs before the first step."""

import json
from pathlib import Path

import pytest

from tests import containers
from tests.image.train_runs import HERE, ONE_THREAD, line, mounts, result, run_alone


@pytest.fixture(scope="module")
def folder(image: str, train_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter's run for each of two models, and a run of all weights for a model with many words."""
    made = tmp_path_factory.mktemp("memory")
    run_alone(image, train_data, made, {}, "two_sizes.py")
    adapter: dict[str, object] = {"use_peft": True, "lora_r": 2, "lora_target_modules": "q_proj"}
    full: dict[str, object] = {"optim": "sgd", "gradient_accumulation_steps": 2}
    for name, changes in (("small", adapter), ("large", adapter), ("words", full)):
        model = {"model_name_or_path": f"/output/{name}", "text_column_names": "text", "task": "text-generation"}
        flags = line(f"/output/{name}-trained", **model, **changes, bf16=True, max_steps=2, eval_strategy="no")
        containers.works(
            containers.run(image, "train", *flags, env=ONE_THREAD, docker_args=mounts(train_data, made))
        )
    return made


def test_frozen_weights_are_in_memory_once(folder: Path) -> None:
    """Not also in the file's mapping, in a copy on another device, or in DDP's buffers."""
    weights = [(folder / name / "model.safetensors").stat().st_size for name in ("small", "large")]
    peaks = [result(folder / f"{name}-trained")["peak_memory_bytes"][0] for name in ("small", "large")]
    assert weights[1] - weights[0] > 200e6
    assert (peaks[1] - peaks[0]) / (weights[1] - weights[0]) < 1.3


@pytest.mark.parametrize("name", ["small", "large", "words"])
def test_the_memory_that_train_expects_is_what_it_needs(folder: Path, name: str) -> None:
    found = result(folder / f"{name}-trained")
    assert found["expected_memory_bytes"] == pytest.approx(found["peak_memory_bytes"][0], rel=0.15)


def test_frozen_weights_are_stored_in_bf16_and_in_fp32_again_without_more_memory(image: str) -> None:
    volumes = ("--volume", f"{HERE}:/tests:ro")
    argv = ("run", "--quiet", "/tests/scripts/narrowed_memory.py")
    done = containers.run(image, *argv, env=ONE_THREAD, docker_args=volumes)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["grown"] / found["weights"] < 0.3
