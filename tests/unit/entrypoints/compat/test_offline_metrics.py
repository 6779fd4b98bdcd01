"""A metric whose package is missing is named in one line."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cpu_train_stack.adapt.adaptation import Situation
from cpu_train_stack.cli import packages
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.compat import offline_metrics


def evaluate(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The adapted package, whose own `load` returns the name. No package of a metric is installed."""
    module: Any = ModuleType("evaluate")
    module.load = lambda path, *_args, **_options: path
    module.loading = ModuleType("evaluate.loading")
    monkeypatch.setattr(packages, "installed", lambda _name: False)
    offline_metrics.hook(Situation((), {}, "gloo"), module)
    return module


@pytest.mark.parametrize(("metric", "package"), [("rouge", "rouge_score>=0.1.2"), ("sacrebleu", "sacrebleu")])
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, metric: str, package: str) -> None:
    with pytest.raises(UsageError, match=f"needs the package {package}, .* ./inv build --with '{package}'"):
        evaluate(monkeypatch).load(metric)


def test_other_metrics_are_those_of_evaluate(monkeypatch: pytest.MonkeyPatch) -> None:
    assert evaluate(monkeypatch).load("meteor") == "meteor"


def test_a_metric_that_cannot_be_downloaded_is_one_line_with_those_of_the_image(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = evaluate(monkeypatch)

    def load(path: str, *_args: Any) -> None:
        raise FileNotFoundError(f"Module '{path}' doesn't exist on the Hugging Face Hub either.")

    module.load = load
    offline_metrics.hook(Situation((), {}, "gloo"), module)
    with pytest.raises(UsageError, match=r"'meteor'.*: use one of accuracy, .*, squad_v2, .* working folder"):
        module.load("meteor")
    with pytest.raises(FileNotFoundError):
        module.load("someone/meteor")


def test_only_a_program_in_the_working_folder_hides_the_images_metric(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """evaluate loads NAME/NAME.py, and neither a folder of data nor a script of that name."""
    monkeypatch.chdir(tmp_path)
    load = evaluate(monkeypatch).load
    (tmp_path / "rouge").mkdir()
    (tmp_path / "sacrebleu.py").touch()
    for name in ("rouge", "sacrebleu"):
        with pytest.raises(UsageError, match="needs the package"):  # the image's metric
            load(name)
    (tmp_path / "rouge" / "rouge.py").touch()
    assert load("rouge") == "rouge"
