"""Canaries of names and arguments that libraries removed."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import inspect
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate
import datasets
import huggingface_hub
import torch
import transformers
from private_names import MovedError, hook
from transformers import HfArgumentParser, Trainer, TrainingArguments, trainer_pt_utils, trainer_utils

from cpu_train_stack.compat import old_names, trainer_names
from cpu_train_stack.compat.flags import OldFlag


def lacks(owner: str, *names: str) -> bool:
    """Whether a module or a class (module:class) lacks one of the names."""
    module, _, kind = owner.partition(":")
    place = importlib.import_module(module)
    place = getattr(place, kind) if kind else place
    return not all(hasattr(place, name) for name in names)


def arguments(**options: Any) -> Any:
    field = "use_cpu" if "use_cpu" in inspect.signature(TrainingArguments).parameters else "no_cuda"
    return TrainingArguments(
        output_dir="/tmp/canaries", **{field: True, "report_to": [], "disable_tqdm": True, **options}
    )


class Halves(torch.nn.Module):
    """Its loss is a mean, which the count of the labels does not divide."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, labels: Any = None, **_options: Any) -> dict[str, Any]:
        return {"loss": self.weight.sum() * 6.0}


def lacks_old_names(adaptation: str) -> bool:
    """Whether a module lacks an old name. Raises MovedError if what replaces it does not exist."""
    modules = old_names.NAMES[adaptation]
    for replacement in (found for names in modules.values() for found in names.values()):
        if not callable(replacement):
            hook(importlib.import_module(replacement[0]), replacement[1])
    return any(lacks(module, *names) for module, names in modules.items())


def is_refused(flag: OldFlag) -> bool:
    """The field is missing from TrainingArguments, or its parser or Trainer refuses the old value."""
    for name in ("parse_known_args", "parse_dict"):
        hook(HfArgumentParser, name)
    hook(TrainingArguments, "__post_init__")
    is_field = flag.name in {item.name for item in dataclasses.fields(TrainingArguments)}
    if not is_field or not flag.only:
        return not is_field
    create_trainer()
    try:
        create_trainer(f"--{flag.name}={flag.only[0]}")
    except (SystemExit, ValueError):
        return True
    return False


def create_trainer(*flags: str) -> None:
    line = ["--output_dir=/tmp/canaries", "--use_cpu", *flags]
    (given,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(line)
    Trainer(Halves(), given).create_optimizer()


def auth_token() -> bool:
    hook(transformers.PreTrainedModel, "from_pretrained")
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder, "rows.json")
        rows.write_text(json.dumps({"a": 1}))
        load = hook(datasets, "load_dataset", "token")
        load("json", data_files=str(rows), cache_dir=folder, token=None)
        try:
            load("json", data_files=str(rows), cache_dir=folder, use_auth_token=None)
        except (TypeError, ValueError):
            return True
    return False


def removed_torch_tpu() -> bool:
    hook(transformers.utils.import_utils._LazyModule, "__getattr__")
    return lacks_old_names("torch-tpu")


def accelerator_names() -> bool:
    accelerator = hook(accelerate, "Accelerator", "project_dir")
    hook(accelerate.DistributedType, "XLA")
    try:
        accelerator(cpu=True, logging_dir="/tmp/canaries")
    except TypeError:
        return True
    return lacks("accelerate:Accelerator", "use_fp16") or lacks("accelerate:DistributedType", "TPU")


def moved_names() -> bool:
    is_moved = importlib.util.find_spec(old_names.OLD_DEEPSPEED) is None
    return lacks_old_names("moved-names") or is_moved


def encode_plus() -> bool:
    base = transformers.PreTrainedTokenizerBase
    hook(base, "__call__", "text", "text_pair", "add_special_tokens")
    hook(base, "encode")
    return not all(hasattr(base, name) for name in ("encode_plus", "batch_encode_plus", "as_target_tokenizer"))


def trainer_methods() -> bool:
    class Older(Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False) -> Any:
            return model(**inputs)["loss"]

    def step(kind: Any) -> None:
        trainer = kind(Halves(), arguments())
        trainer.current_gradient_accumulation_steps = 1
        trainer.training_step(trainer.model, {"labels": torch.ones(1)}, num_items_in_batch=torch.tensor(1))

    hook(Trainer, "_maybe_log_save_evaluate", "tr_loss", "model", "trial", "epoch", "ignore_keys_for_eval")
    hook(Trainer, "_save_checkpoint", "model", "trial")
    hook(Trainer, "train", "resume_from_checkpoint")
    step(Trainer)
    try:
        step(Older)
    except TypeError:
        return True
    return False


def trainer_tokenizer() -> bool:
    hook(transformers.trainer_callback.CallbackHandler, "add_callback", "callback")
    Trainer(Halves(), arguments(), processing_class=None)
    try:
        return not hasattr(Trainer(Halves(), arguments(), tokenizer=None), "tokenizer")
    except TypeError:
        return True


def removed_trainer_names() -> bool:
    hook(trainer_pt_utils, "distributed_concat", "tensor")
    hook(trainer_pt_utils, "nested_numpify")
    hook(
        trainer_utils, "sort_checkpoints", "output_dir", "checkpoint_prefix", "use_mtime", "best_model_checkpoint"
    )
    hook(
        trainer_utils, "rotate_checkpoints", "output_dir", "save_total_limit", "best_model_checkpoint", "use_mtime"
    )
    hook(accelerate.Accelerator, "pad_across_processes", "dim", "pad_index")
    hook(Trainer, "evaluation_loop")
    return lacks("transformers:Trainer", *trainer_names.REMOVED)


def repository() -> bool:
    hook(huggingface_hub, "HfApi")
    return lacks_old_names("hub-repository")


def offline_metrics() -> bool:
    import evaluate

    from cpu_train_stack.compat.metrics import METRICS

    hook(evaluate, "load", "path", "config_name", "module_type", "download_config", "download_mode", "revision")
    if evaluate.loading.load is not evaluate.load:
        raise MovedError("evaluate.load is not evaluate.loading.load")
    METRICS["accuracy"](keep_in_memory=True).compute(predictions=[0, 1], references=[0, 1])
    with contextlib.suppress(OSError, ConnectionError):
        evaluate.load("accuracy", download_config=datasets.DownloadConfig(local_files_only=True, max_retries=0))
        return False
    return True


CANARIES: dict[str, Callable[[], bool]] = {
    "offline-metrics": offline_metrics,
    "telemetry": functools.partial(lacks_old_names, "telemetry"),
    "offline-mode": functools.partial(lacks_old_names, "offline-mode"),
    "load-metric": functools.partial(lacks_old_names, "load-metric"),
    "auth-token": auth_token,
    "torch-tpu": removed_torch_tpu,
    "hub-repository": repository,
    "accelerator-names": accelerator_names,
    "moved-names": moved_names,
    "adamw": functools.partial(lacks_old_names, "adamw"),
    "encode-plus": encode_plus,
    "trainer-methods": trainer_methods,
    "trainer-tokenizer": trainer_tokenizer,
    "trainer-names": removed_trainer_names,
}
