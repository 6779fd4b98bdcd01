"""Names and parameters that libraries removed or renamed, and that example scripts of transformers 4 still use.

datasets: load_metric moved to the package evaluate and was removed in 3.0; `use_auth_token` has been called
`token` since datasets 2.14 and transformers 4.32, and datasets 3.0 and transformers 5.0 refuse the old name.
transformers: MOVED lists what other modules have now. 4.51 removed is_torch_tpu_available from the top level. 5.0
removed send_example_telemetry, get_full_repo_name (only for --push_to_hub), and is_offline_mode of
transformers.utils.
huggingface_hub: 1.0 removed Repository.
accelerate: 1.0 removed Accelerator.use_fp16 and DistributedType.TPU, and renamed logging_dir to project_dir.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import inspect
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NoReturn

from cpu_train_stack.adapt.adaptation import (
    Adaptation,
    Releases,
    Situation,
    add_to_transformers,
    before_method,
    on_import,
)
from cpu_train_stack.cli import packages
from cpu_train_stack.cli.import_hooks import after_import

_METRIC, _TOKEN, _TELEMETRY = "load-metric", "auth-token", "telemetry"
_TPU, _REPOSITORY, _ACCELERATOR = "torch-tpu", "hub-repository", "accelerator-names"
_OFFLINE, _MOVED = "offline-mode", "moved-names"
_XLA = "is_torch_xla_available"
_PYTORCH, _SAMPLERS = "transformers.pytorch_utils", "transformers.trainer_pt_utils"
# By the module from which scripts import them: the old names, and the module and the name that they have now.
MOVED: dict[str, dict[str, tuple[str, str]]] = {
    "transformers.trainer": {
        "ALL_LAYERNORM_LAYERS": (_PYTORCH, "ALL_LAYERNORM_LAYERS"),
        "DistributedLengthGroupedSampler": (_SAMPLERS, "DistributedLengthGroupedSampler"),
        "nested_concat": (_SAMPLERS, "nested_concat"),
        "nested_numpify": (_SAMPLERS, "nested_numpify"),
        "is_apex_available": ("transformers.utils", "is_apex_available"),
        "is_torch_tpu_available": ("transformers.utils", _XLA),
    },
    "transformers.trainer_utils": {"EvaluationStrategy": ("transformers.trainer_utils", "IntervalStrategy")},
    "transformers.modeling_utils": {
        name: (_PYTORCH, name) for name in ("apply_chunking_to_forward", "prune_linear_layer", "Conv1D")
    },
    "transformers.utils": {
        "cached_property": ("functools", "cached_property"),
        "is_torch_tpu_available": ("transformers.utils", _XLA),
    },
    "transformers.file_utils": {
        "cached_property": ("functools", "cached_property"),
        "is_torch_tpu_available": ("transformers.utils", _XLA),
    },
}
OLD_DEEPSPEED = "transformers.deepspeed"
_OLD_PARAMETER = "use_auth_token"
_OF_DATASETS, _OF_TRANSFORMERS = Releases("datasets", "3.0"), Releases("transformers", "5.0")
_USED = "if the script uses it"
_PUSH = "huggingface_hub 1.0 removed Repository: remove --push_to_hub, and upload the folder with `hf upload`"


def _add_telemetry(situation: Situation, module: Any) -> None:
    if hasattr(module, "send_example_telemetry"):
        return

    def send_example_telemetry(*_args: Any, **_options: Any) -> None:
        situation.report(_TELEMETRY, "send_example_telemetry was removed from transformers: nothing is sent")

    module.send_example_telemetry = send_example_telemetry


def add_is_offline_mode(situation: Situation, module: Any) -> None:
    if hasattr(module, "is_offline_mode"):
        return

    def is_offline_mode() -> bool:
        import huggingface_hub

        situation.report(_OFFLINE, "transformers.utils.is_offline_mode is now huggingface_hub.is_offline_mode")
        return bool(huggingface_hub.is_offline_mode())

    module.is_offline_mode = is_offline_mode


def _add_load_metric(situation: Situation, module: Any) -> None:
    if hasattr(module, "load_metric"):
        return

    def load_metric(*args: Any, **options: Any) -> Any:
        import evaluate

        situation.report(_METRIC, "datasets.load_metric is now evaluate.load")
        return evaluate.load(*args, **options)

    module.load_metric = load_metric


def _rename_token(situation: Situation, options: dict[str, Any]) -> dict[str, Any]:
    if _OLD_PARAMETER not in options:
        return options
    kept = {name: value for name, value in options.items() if name != _OLD_PARAMETER}
    if options[_OLD_PARAMETER]:  # None and False mean no token
        kept.setdefault("token", options[_OLD_PARAMETER])
    situation.report(_TOKEN, f"{_OLD_PARAMETER} is now called token")
    return kept


def _hook_load_dataset(situation: Situation, module: Any) -> None:
    original = module.load_dataset

    @functools.wraps(original)
    def load_dataset(*args: Any, **options: Any) -> Any:
        return original(*args, **_rename_token(situation, options))

    module.load_dataset = load_dataset


def _hook_from_pretrained(situation: Situation, module: Any) -> None:
    original = module.PreTrainedModel.from_pretrained.__func__

    @functools.wraps(original)
    def from_pretrained(cls: Any, *args: Any, **options: Any) -> Any:
        return original(cls, *args, **_rename_token(situation, options))

    module.PreTrainedModel.from_pretrained = classmethod(from_pretrained)


def _install_token(situation: Situation) -> None:
    on_import("datasets", _hook_load_dataset, _OF_DATASETS)(situation)
    on_import("transformers.modeling_utils", _hook_from_pretrained, _OF_TRANSFORMERS)(situation)


def _without_arguments(function: Callable[[], Any]) -> Callable[..., Any]:
    """For is_torch_tpu_available, whose argument `check_device` is gone."""
    return lambda *_args, **_options: function()


def _add_is_torch_tpu_available(situation: Situation, module: Any) -> None:
    @_without_arguments
    def is_torch_tpu_available() -> bool:
        situation.report(_TPU, f"is_torch_tpu_available is now {_XLA}")
        return bool(module.is_torch_xla_available())

    add_to_transformers(module, "is_torch_tpu_available", lambda: is_torch_tpu_available)


def _refuse_push(*_args: Any, **_options: Any) -> NoReturn:
    raise RuntimeError(_PUSH)


def add_importable_name(name: str, module: Any) -> None:
    """Let scripts import a removed name. A call raises RuntimeError."""
    if not hasattr(module, name):
        setattr(module, name, _refuse_push)


def _install_repository(_situation: Situation) -> None:
    after_import("huggingface_hub", functools.partial(add_importable_name, "Repository"))
    after_import("transformers.utils", functools.partial(add_importable_name, "get_full_repo_name"))


def _hook_accelerator(situation: Situation, module: Any) -> None:
    accelerator = module.Accelerator
    if not hasattr(accelerator, "use_fp16"):

        def use_fp16(self: Any) -> bool:
            situation.report(_ACCELERATOR, "Accelerator.use_fp16 is now mixed_precision")
            return bool(self.mixed_precision == "fp16")

        accelerator.use_fp16 = property(use_fp16)

    def rename(_accelerator: Any, options: dict[str, Any]) -> None:
        if "logging_dir" in options:
            options.setdefault("project_dir", options.pop("logging_dir"))
            situation.report(_ACCELERATOR, "Accelerator(logging_dir=...) is now Accelerator(project_dir=...)")

    if "logging_dir" not in inspect.signature(accelerator.__init__).parameters:
        before_method(accelerator, "__init__", rename)


def add_tpu(_situation: Situation, module: Any) -> None:
    """Let scripts compare with DistributedType.TPU, which is now XLA."""
    kinds = module.DistributedType
    if not hasattr(kinds, "TPU"):
        kinds.TPU = kinds.XLA


def _install_accelerator(situation: Situation) -> None:
    on_import("accelerate.utils.dataclasses", add_tpu)(situation)
    on_import("accelerate.accelerator", _hook_accelerator)(situation)


class _RemovedNamesFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a module that has another name now, if no other finder does."""

    def __init__(self, situation: Situation, adaptation: str, old: str, now: str) -> None:
        self.situation, self.adaptation, self.old, self.now = situation, adaptation, old, now

    def find_spec(self, name: str, _path: object, _target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name != self.old or not packages.installed(self.now.partition(".")[0]):
            return None
        return importlib.machinery.ModuleSpec(name, self)

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(self.now)
        self.situation.report(self.adaptation, f"{self.old} is now {self.now}")


def add_moved(names: Mapping[str, tuple[str, str]], situation: Situation, module: Any) -> None:
    """Let scripts import the old names from the module."""
    original = vars(module).get("__getattr__")

    def find(name: str) -> Any:
        if name in names:
            owner, now = names[name]
            situation.report(_MOVED, f"{module.__name__}.{name} is now {owner}.{now}")
            found = getattr(importlib.import_module(owner), now)
            return _without_arguments(found) if now == _XLA else found
        if original is not None:
            return original(name)
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

    module.__getattr__ = find


def _install_moved(situation: Situation) -> None:
    for name, names in MOVED.items():
        after_import(name, functools.partial(add_moved, names, situation))
    sys.meta_path.append(
        _RemovedNamesFinder(situation, _MOVED, OLD_DEEPSPEED, "transformers.integrations.deepspeed")
    )


ADAPTATIONS = (
    Adaptation(
        _TELEMETRY,
        "transformers.utils.send_example_telemetry exists, and sends nothing",
        (_OF_TRANSFORMERS,),
        on_import("transformers.utils", _add_telemetry),
        when=_USED,
        upstream="huggingface/transformers#41168",
    ),
    Adaptation(
        _OFFLINE,
        "transformers.utils.is_offline_mode exists, and calls huggingface_hub.is_offline_mode",
        (_OF_TRANSFORMERS,),
        on_import("transformers.utils", add_is_offline_mode),
        when=_USED,
    ),
    Adaptation(
        _METRIC,
        "datasets.load_metric exists, and calls evaluate.load",
        (_OF_DATASETS,),
        on_import("datasets", _add_load_metric),
        when=_USED,
        upstream="huggingface/datasets#6983",
    ),
    Adaptation(
        _TOKEN,
        "use_auth_token is passed on as token, or dropped",
        (_OF_DATASETS, _OF_TRANSFORMERS),
        _install_token,
        when=_USED,
    ),
    Adaptation(
        _TPU,
        "transformers.is_torch_tpu_available exists, and calls is_torch_xla_available",
        (Releases("transformers", "4.51"),),
        on_import("transformers.utils.import_utils", _add_is_torch_tpu_available),
        when=_USED,
    ),
    Adaptation(
        _REPOSITORY,
        "huggingface_hub.Repository and get_full_repo_name can be imported; a call raises an error with the fix",
        (_OF_TRANSFORMERS,),
        _install_repository,
        when=_USED,
        upstream="huggingface/huggingface_hub#3346",
    ),
    Adaptation(
        _ACCELERATOR,
        "Accelerator.use_fp16 and DistributedType.TPU exist, and logging_dir is passed on as project_dir",
        (Releases("accelerate", "1.0"),),
        _install_accelerator,
        when=_USED,
    ),
    Adaptation(
        _MOVED,
        "names such as trainer.ALL_LAYERNORM_LAYERS can be imported from their old modules",
        (Releases("transformers", "4.31"),),  # the first of them; most since 5.0
        _install_moved,
        when=_USED,
    ),
)
