"""What examples of transformers 4.13 to 4.33 ask of datasets and of models, and what has another name now.

datasets.load_metric went to the package evaluate and is gone since datasets 3.0. `use_auth_token` has been called
`token` since datasets 2.14 and transformers 4.32; datasets 3.0 and transformers 5.0 refuse the old name.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from entrypoints.adapt.adaptation import Adaptation, Situation, Verdict
from entrypoints.cli.import_hooks import after_import

_METRIC, _TOKEN = "load-metric", "auth-token"
_OLD = "use_auth_token"


def _hook_metric(situation: Situation, module: ModuleType) -> None:
    if hasattr(module, "load_metric"):
        return

    def load_metric(*args: Any, **options: Any) -> Any:
        import evaluate

        situation.say(_METRIC, "datasets.load_metric is evaluate.load now")
        return evaluate.load(*args, **options)

    module.load_metric = load_metric  # type: ignore[attr-defined]


def _renamed(situation: Situation, options: dict[str, Any]) -> dict[str, Any]:
    if _OLD not in options:
        return options
    kept = {name: value for name, value in options.items() if name != _OLD}
    if options[_OLD]:  # None and False meant: without
        kept.setdefault("token", options[_OLD])
    situation.say(_TOKEN, f"{_OLD} is called token now")
    return kept


def _hook_datasets(situation: Situation, module: ModuleType) -> None:
    original = module.load_dataset

    @functools.wraps(original)
    def load_dataset(*args: Any, **options: Any) -> Any:
        return original(*args, **_renamed(situation, options))

    module.load_dataset = load_dataset  # type: ignore[attr-defined]


def _hook_models(situation: Situation, module: ModuleType) -> None:
    made = module.PreTrainedModel
    original = made.from_pretrained.__func__

    @functools.wraps(original)
    def from_pretrained(cls: Any, *args: Any, **options: Any) -> Any:
        return original(cls, *args, **_renamed(situation, options))

    made.from_pretrained = classmethod(from_pretrained)


def _install_token(situation: Situation) -> None:
    if situation.since("datasets", "3.0.0"):
        after_import("datasets", functools.partial(_hook_datasets, situation))
    if situation.since("transformers", "5.0.0"):
        after_import("transformers.modeling_utils", functools.partial(_hook_models, situation))


def _look(situation: Situation) -> Verdict:
    if situation.since("datasets", "3.0.0"):
        return Verdict(True, "where the script has it")
    return Verdict(False, "datasets before 3.0 has it")


ADAPTATIONS = (
    Adaptation(
        _METRIC,
        "datasets.load_metric is there again, as evaluate.load",
        _look,
        lambda situation: after_import("datasets", functools.partial(_hook_metric, situation)),
    ),
    Adaptation(_TOKEN, "use_auth_token is handed on as token, or left out", _look, _install_token),
)
