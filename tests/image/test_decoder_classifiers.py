"""Classifiers of decoders, whose configurations often have no padding token, or have it for the text alone."""

import json
from pathlib import Path

import pytest

from tests.image.train_runs import Runs, line, result, run_alone

MODELS = ("llama", "gemma")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("decoders")
    (made / "lengths.csv").write_text(
        "text,label\n" + "".join(f"{'good ' * (n % 5 + 1)}end,{'ab'[n % 2]}\n" for n in range(16))
    )
    return made


@pytest.fixture(scope="module")
def runs(image: str, train_data: Path, folder: Path) -> Runs:
    lines = {}
    for name in MODELS:
        data = {"train_file": "/output/lengths.csv", "validation_file": "/output/lengths.csv"}
        trained = {**data, "model_name_or_path": f"/output/{name}", "gradient_checkpointing": True}
        alone = {**data, "model_name_or_path": f"/output/{name}-trained", "train_file": None}
        lines[name] = line(f"/output/{name}-trained", **trained)
        lines[f"{name} alone"] = line(f"/output/{name}-alone", per_device_eval_batch_size=1, **alone)
    return run_alone(image, train_data, folder, lines, "decoders_without_padding.py")


@pytest.mark.parametrize("name", MODELS)
def test_padding_does_not_change_the_class_of_a_row(runs: Runs, folder: Path, name: str) -> None:
    assert runs[name]["code"] == runs[f"{name} alone"]["code"] == 0, (runs[name], runs[f"{name} alone"])
    config = json.loads((folder / f"{name}-trained" / "config.json").read_text())
    assert config.get("text_config", config)["pad_token_id"] == 0
    batches, rows = (result(folder / f"{name}-{what}")["metrics"]["eval_loss"] for what in ("trained", "alone"))
    assert rows == pytest.approx(batches, abs=1e-4)
