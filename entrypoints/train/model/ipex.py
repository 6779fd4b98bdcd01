"""Intel's extension, on the pins that still have it: `--use_ipex`.

transformers calls `ipex.optimize` itself until 4.52, keeps the flag without a call until 4.55 and then drops it;
accelerate calls it only for torch before 2.7. Here it is called where neither does.
"""

from __future__ import annotations

from typing import Any

from entrypoints.adapt import cpu_device
from entrypoints.cli.import_hooks import after_import


def keep_weights() -> None:
    """Call it before accelerate makes its state: a model's move to a rank's device leaves IPEX's weights alone."""
    after_import(cpu_device.MODULE, cpu_device.without_index)


def is_left_to_us(trainer: type, arguments: Any) -> bool:
    """Whether `--use_ipex` was given and Hugging Face's Trainer does nothing about it."""
    return bool(getattr(arguments, "use_ipex", False)) and not hasattr(trainer, "ipex_optimize_model")


def optimize(model: Any, optimizer: Any, bf16: bool) -> Any:
    """Optimizes a model in place for training and returns its optimizer, which must be made already.

    In bf16 the weights are bf16 from here on, and the optimizer keeps what is lost of them.
    """
    import intel_extension_for_pytorch
    import torch

    model.train()
    dtype = torch.bfloat16 if bf16 else None
    _, optimizer = intel_extension_for_pytorch.optimize(
        model, optimizer=optimizer, dtype=dtype, inplace=True, level="O1"
    )
    return optimizer
