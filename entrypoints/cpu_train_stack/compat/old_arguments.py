"""Parameters that libraries renamed, and attributes of accelerate that it removed.

`use_auth_token` has been called `token` since datasets 2.14 and transformers 4.32; datasets 3.0 and transformers
5.0 refuse the old name. accelerate 1.0 removed Accelerator.use_fp16 and DistributedType.TPU, which is XLA now, and
renamed logging_dir to project_dir.
"""

from __future__ import annotations

import inspect
from typing import Any

from cpu_train_stack.adapt.adaptation import Situation
from cpu_train_stack.adapt.changes import around, before_method

_OLD, _LOAD = "use_auth_token", "from_pretrained"


def rename_token(situation: Situation, module: Any) -> None:
    """`module`: datasets, or transformers.modeling_utils."""
    owner, name = (module, "load_dataset") if hasattr(module, "load_dataset") else (module.PreTrainedModel, _LOAD)

    @around(owner, name)
    def load(original: Any, *args: Any, **options: Any) -> Any:
        if _OLD in options:
            token = options.pop(_OLD)
            if token:  # None and False mean no token
                options.setdefault("token", token)
            situation.report(f"{_OLD} is now called token")
        return original(*args, **options)


def hook_accelerator(situation: Situation, module: Any) -> None:
    accelerator = module.Accelerator
    if not hasattr(accelerator, "use_fp16"):

        def use_fp16(self: Any) -> bool:
            situation.report("Accelerator.use_fp16 is now mixed_precision")
            return bool(self.mixed_precision == "fp16")

        accelerator.use_fp16 = property(use_fp16)

    def rename(_accelerator: Any, options: dict[str, Any]) -> None:
        if "logging_dir" in options:
            options.setdefault("project_dir", options.pop("logging_dir"))
            situation.report("Accelerator(logging_dir=...) is now Accelerator(project_dir=...)")

    if "logging_dir" not in inspect.signature(accelerator.__init__).parameters:
        before_method(accelerator, "__init__", rename)


def add_tpu(_situation: Situation, module: Any) -> None:
    """Let scripts compare with DistributedType.TPU."""
    kinds = module.DistributedType
    if not hasattr(kinds, "TPU"):
        kinds.TPU = kinds.XLA
