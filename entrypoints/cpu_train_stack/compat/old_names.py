"""Names that libraries removed or moved, and that example scripts of transformers 4 still import.

A script finds them in their old modules, but only where the installed library does not have them any more.
datasets 3.0 moved load_metric to the package evaluate. transformers 4.51 removed AdamW and is_torch_tpu_available
from the top level; 5.0 removed send_example_telemetry, get_full_repo_name (only for --push_to_hub), and
is_offline_mode of transformers.utils. huggingface_hub 1.0 removed Repository.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import Any, Callable, NoReturn, Union

from cpu_train_stack.adapt.adaptation import Situation
from cpu_train_stack.adapt.changes import around
from cpu_train_stack.cli import packages

# A module and a name in it, or a function that returns what the script gets.
Replacement = Union[tuple[str, str], Callable[[Situation], Any]]
_XLA = ("transformers.utils", "is_torch_xla_available")
_PYTORCH, _SAMPLERS = "transformers.pytorch_utils", "transformers.trainer_pt_utils"
_OLD_UTILS = {"cached_property": ("functools", "cached_property"), "is_torch_tpu_available": _XLA}
OLD_DEEPSPEED, DEEPSPEED = "transformers.deepspeed", "transformers.integrations.deepspeed"


def _no_telemetry(situation: Situation) -> Callable[..., None]:
    def send_example_telemetry(*_args: Any, **_options: Any) -> None:
        situation.report("send_example_telemetry was removed from transformers: nothing is sent")

    return send_example_telemetry


def _refused(_situation: Situation) -> Callable[..., NoReturn]:
    def refuse(*_args: Any, **_options: Any) -> NoReturn:
        raise RuntimeError(
            "huggingface_hub 1.0 removed Repository: remove --push_to_hub, and upload the folder with `hf upload`"
        )

    return refuse


def _adamw(situation: Situation) -> Any:
    from cpu_train_stack.compat import old_optimizer

    situation.report("AdamW was removed from transformers: the image's own computes the same steps")
    return old_optimizer.AdamW


# By adaptation and by the module from which scripts import them. `transformers` itself is another kind of module,
# see `add_lazily`.
NAMES: dict[str, dict[str, dict[str, Replacement]]] = {
    "telemetry": {"transformers.utils": {"send_example_telemetry": _no_telemetry}},
    "offline-mode": {"transformers.utils": {"is_offline_mode": ("huggingface_hub", "is_offline_mode")}},
    "load-metric": {"datasets": {"load_metric": ("evaluate", "load")}},
    "torch-tpu": {"transformers": {"is_torch_tpu_available": _XLA}},
    "adamw": {"transformers": {"AdamW": _adamw}, "transformers.optimization": {"AdamW": _adamw}},
    "hub-repository": {
        "huggingface_hub": {"Repository": _refused},
        "transformers.utils": {"get_full_repo_name": _refused},
    },
    "moved-names": {
        "transformers.trainer": {
            "ALL_LAYERNORM_LAYERS": (_PYTORCH, "ALL_LAYERNORM_LAYERS"),
            "DistributedLengthGroupedSampler": (_SAMPLERS, "DistributedLengthGroupedSampler"),
            "nested_concat": (_SAMPLERS, "nested_concat"),
            "nested_numpify": (_SAMPLERS, "nested_numpify"),
            "is_apex_available": ("transformers.utils", "is_apex_available"),
            "is_torch_tpu_available": _XLA,
        },
        "transformers.trainer_utils": {"EvaluationStrategy": ("transformers.trainer_utils", "IntervalStrategy")},
        "transformers.modeling_utils": {
            name: (_PYTORCH, name) for name in ("apply_chunking_to_forward", "prune_linear_layer", "Conv1D")
        },
        "transformers.utils": {**_OLD_UTILS},
        "transformers.file_utils": {**_OLD_UTILS},
    },
}


def add(situation: Situation, module: Any) -> None:
    """Let scripts import the old names of a module."""
    names = NAMES[situation.name][module.__name__]
    original = vars(module).get("__getattr__")

    def find(name: str) -> Any:
        try:
            if original is not None:
                return original(name)
        except AttributeError:
            if name not in names:
                raise
        if name in names:
            return _found(situation, module.__name__, name, names[name])
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

    module.__getattr__ = find


def add_lazily(situation: Situation, module: Any) -> None:
    """Let scripts import the old names of transformers itself. `module`: transformers.utils.import_utils.

    On the class of all lazy modules: processing_utils replaces the module transformers by another object.
    """
    names = NAMES[situation.name]["transformers"]

    @around(module._LazyModule, "__getattr__")
    def get(original: Any, self: Any, name: str) -> Any:
        try:
            return original(self, name)
        except AttributeError:
            if self.__name__ != "transformers" or name not in names:
                raise
            return _found(situation, "transformers", name, names[name])


def _found(situation: Situation, old: str, name: str, replacement: Replacement) -> Any:
    if callable(replacement):
        return replacement(situation)
    owner, now = replacement
    situation.report(f"{old}.{name} is now {owner}.{now}")
    found = getattr(importlib.import_module(owner), now)
    # is_torch_tpu_available had an argument `check_device`.
    return (lambda *_args, **_options: found()) if replacement == _XLA else found


class _DeepspeedFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a module that has another name now, if no other finder does."""

    def __init__(self, situation: Situation) -> None:
        self._situation = situation

    def find_spec(self, name: str, _path: object, _target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name != OLD_DEEPSPEED or not packages.installed("transformers"):
            return None
        return importlib.machinery.ModuleSpec(name, self)

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(DEEPSPEED)
        self._situation.report(f"{OLD_DEEPSPEED} is now {DEEPSPEED}")


def find_deepspeed(situation: Situation, _sys: Any) -> None:
    """Let scripts import transformers.deepspeed."""
    sys.meta_path.append(_DeepspeedFinder(situation))
