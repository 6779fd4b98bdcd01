"""Use the CPU in scripts that do not ask for it, and keep accelerate from copying the model.

Since accelerate 1.13, a rank without CUDA and without `use_cpu` is a separate job: every rank silently trains on
all rows. transformers 4.24, and 4.52 and newer, refuse `bf16` ("You need to assign use_cpu"). Before 4.32, the
field is called no_cuda. `_no_trainer` scripts create accelerate's Accelerator themselves, which needs the same
setting.

Since accelerate 0.29, the device of a rank in a group is `cpu:N`, which torch treats as another device than `cpu`:
the `model.to(device)` of Trainer and of `Accelerator.prepare` copies every weight. Weights that are mapped from
the model's file are then in memory twice until the last one is copied. IPEX's layers continue to use the memory
into which IPEX packed their weights, while the optimizer changes the copies: the model silently learns nothing. On
torch before 2.7, accelerate packs the weights even if the script does not ask for IPEX.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from cpu_train_stack.adapt.adaptation import Situation
from cpu_train_stack.adapt.changes import after_creation, around, before_method
from cpu_train_stack.cli import packages
from cpu_train_stack.cli.import_hooks import after_import


def _has_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def imply_use_cpu(situation: Situation, module: Any) -> None:
    arguments = module.TrainingArguments
    names = {item.name for item in dataclasses.fields(arguments)}
    field = "use_cpu" if "use_cpu" in names else "no_cuda"

    def imply(created: Any, _options: dict[str, Any]) -> None:
        if not getattr(created, field) and not _has_gpu():
            setattr(created, field, True)
            situation.report(f"--{field} is implied")

    before_method(arguments, "__post_init__", imply)


def imply_accelerator_cpu(situation: Situation, module: Any) -> None:
    # accelerate of 2022 has only AcceleratorState, and looks for a GPU in every rank of torchrun.
    state = getattr(module, "PartialState", None) or module.AcceleratorState

    @around(state, "__init__")
    def imply(init: Any, self: Any, *args: Any, **options: Any) -> None:
        # Later objects share the state of the first one.
        if not any(args) and not options.get("cpu") and not state._shared_state and not _has_gpu():
            args, options["cpu"] = (), True
            situation.report("Accelerator(cpu=True) is implied")
        init(self, *args, **options)


def remove_device_index(situation: Situation | None, module: Any) -> None:
    """Make accelerate's PartialState use `cpu` instead of `cpu:N`. `module`: accelerate.state."""

    def remove(state: Any) -> None:
        device = state.device
        if device is not None and device.type == "cpu" and device.index is not None:
            state.device = type(device)("cpu")
            if situation is not None and packages.IPEX in situation.versions:
                situation.report(
                    f"the ranks' device is cpu, not {device}: IPEX's layers keep the weights that are trained"
                )

    after_creation(module.PartialState, remove)


def prevent_copies() -> None:
    """Keep Trainer from copying the model. Call before accelerate creates its state."""
    after_import("accelerate.state", functools.partial(remove_device_index, None))
