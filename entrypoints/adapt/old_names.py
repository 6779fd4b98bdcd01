"""Names that examples of transformers 4.13 to 4.50 import or read for what they do not do here, and that are gone.

is_torch_tpu_available left transformers' top level (4.51); use_legacy_prediction_loop and tpu_metrics_debug left
TrainingArguments (5.0), and trainer_qa.py reads both; huggingface_hub 1.0 has no Repository, transformers 5 no
get_full_repo_name, which only --push_to_hub uses; accelerate 1.0 has no Accelerator.use_fp16 and calls
logging_dir project_dir.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from types import ModuleType
from typing import Any, NoReturn

from entrypoints.adapt.adaptation import Adaptation, Situation, Verdict
from entrypoints.cli.import_hooks import after_import

_TPU, _LOOP, _REPOSITORY, _ACCELERATOR = "torch-tpu", "prediction-loop", "hub-repository", "accelerator-names"
_READ = ("use_legacy_prediction_loop", "tpu_metrics_debug")
_PUSH = "huggingface_hub 1.0 took Repository away: leave --push_to_hub out and upload the folder with `hf upload`"


def _hook_import_utils(situation: Situation, module: ModuleType) -> None:
    """For every module that calls itself transformers: it is made anew by processing_utils, as another object."""
    lazy = module._LazyModule
    original = lazy.__getattr__

    def is_torch_tpu_available(*args: Any, **options: Any) -> bool:  # noqa: ARG001 - check_device
        situation.say(_TPU, "is_torch_tpu_available is is_torch_xla_available now")
        return bool(module.is_torch_xla_available())

    @functools.wraps(original)
    def __getattr__(self: Any, name: str) -> Any:  # noqa: N807 - it is one
        try:
            return original(self, name)
        except AttributeError:
            if (self.__name__, name) != ("transformers", is_torch_tpu_available.__name__):
                raise
            return is_torch_tpu_available

    lazy.__getattr__ = __getattr__


def _hook_training_arguments(situation: Situation, module: ModuleType) -> None:
    made = module.TrainingArguments
    fields = {item.name for item in dataclasses.fields(made)}
    for name in _READ:
        if name not in fields:
            setattr(made, name, _Absent(situation))


class _Absent:
    """A field that TrainingArguments had, False on every object until a script sets it."""

    def __init__(self, situation: Situation) -> None:
        self.situation = situation

    def __get__(self, owner: object, kind: object = None) -> bool:
        self.situation.say(_LOOP, f"{' and '.join(_READ)} are gone from TrainingArguments: the script reads False")
        return False


def _gone(*args: Any, **options: Any) -> NoReturn:  # noqa: ARG001 - as the names were called
    raise RuntimeError(_PUSH)


def give_back(name: str, module: ModuleType) -> None:
    """Lets a name be imported that the module does not have; only calling it fails."""
    if not hasattr(module, name):
        setattr(module, name, _gone)


def _hook_accelerator(situation: Situation, module: ModuleType) -> None:
    made = module.Accelerator
    if not hasattr(made, "use_fp16"):

        def use_fp16(self: Any) -> bool:
            situation.say(_ACCELERATOR, "Accelerator.use_fp16 is mixed_precision now")
            return bool(self.mixed_precision == "fp16")

        made.use_fp16 = property(use_fp16)
    init = made.__init__
    if "logging_dir" in inspect.signature(init).parameters:
        return

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **options: Any) -> None:  # noqa: N807 - it is one
        if "logging_dir" in options:
            options.setdefault("project_dir", options.pop("logging_dir"))
            situation.say(_ACCELERATOR, "Accelerator(logging_dir=...) is Accelerator(project_dir=...) now")
        init(self, *args, **options)

    made.__init__ = __init__


def _install_repository(_situation: Situation) -> None:
    after_import("huggingface_hub", functools.partial(give_back, "Repository"))
    after_import("transformers.utils", functools.partial(give_back, "get_full_repo_name"))


def _look(package: str, version: str, situation: Situation) -> Verdict:
    if situation.since(package, version):
        return Verdict(True, "where the script has it")
    return Verdict(False, f"{package} before {version.rpartition('.')[0]} has it")


def _adaptation(name: str, summary: str, since: tuple[str, str], install: Any) -> Adaptation:
    return Adaptation(name, summary, functools.partial(_look, *since), install)


def _after(module: str, hook: Any) -> Any:
    return lambda situation: after_import(module, functools.partial(hook, situation))


ADAPTATIONS = (
    _adaptation(
        _TPU,
        "transformers.is_torch_tpu_available is there again, as is_torch_xla_available",
        ("transformers", "4.51.0"),
        _after("transformers.utils.import_utils", _hook_import_utils),
    ),
    _adaptation(
        _LOOP,
        "TrainingArguments.use_legacy_prediction_loop and tpu_metrics_debug read as False again",
        ("transformers", "5.0.0"),
        _after("transformers.training_args", _hook_training_arguments),
    ),
    _adaptation(
        _REPOSITORY,
        "huggingface_hub.Repository and get_full_repo_name can be imported; who calls them is told what to do",
        ("transformers", "5.0.0"),
        _install_repository,
    ),
    _adaptation(
        _ACCELERATOR,
        "Accelerator.use_fp16 is there again, and logging_dir is handed on as project_dir",
        ("accelerate", "1.0.0"),
        _after("accelerate.accelerator", _hook_accelerator),
    ),
)
