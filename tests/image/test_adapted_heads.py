"""--use_peft: layers that are not pretrained are trained and saved beside the adapter."""

from pathlib import Path

import pytest

from tests.image.train_runs import Runs, line, result, run_alone

# The layers that a classifier adds to each model.
ADDED = {
    "bart": "classification_head.dense",
    "bert": "bert.pooler.dense",
    "deberta": "pooler.dense",
    "distilbert": "pre_classifier",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("heads")


@pytest.fixture(scope="module")
def runs(image: str, train_data: Path, folder: Path) -> Runs:
    lines = {}
    for name in ADDED:
        trained = f"/output/{name}-adapter"
        lines[name] = line(trained, model_name_or_path=f"/output/{name}", use_peft=True)
        # Another seed: new layers would have other random weights.
        again = {"model_name_or_path": trained, "train_file": None, "seed": 7}
        lines[f"{name} again"] = line(f"/output/{name}-again", **again)
    return run_alone(image, train_data, folder, lines, "headless_models.py")


@pytest.mark.parametrize("name", ADDED)
def test_an_adapter_is_saved_with_all_new_layers(runs: Runs, folder: Path, name: str) -> None:
    first, again = runs[name], runs[f"{name} again"]
    assert first["code"] == again["code"] == 0, (first, again)
    assert f"{ADDED[name]}.weight" in first["stderr"].partition("new weights, not pretrained: ")[2]
    assert "new weights" not in again["stderr"]
    found, expected = (result(folder / f"{name}-{what}")["metrics"]["eval_loss"] for what in ("again", "adapter"))
    assert found == pytest.approx(expected, abs=1e-6)
