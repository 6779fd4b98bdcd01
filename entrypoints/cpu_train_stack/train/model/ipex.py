"""`--use_ipex`: Intel's extension, on the pins that still have it.

transformers calls `ipex.optimize` until 4.52, keeps the flag without a call until 4.55, and then drops the flag.
accelerate calls it only for torch before 2.7. This module calls it if neither of them does.
"""

from __future__ import annotations

from typing import Any


def is_ignored_by(trainer: type, arguments: Any) -> bool:
    """Whether `--use_ipex` was given and Hugging Face's Trainer ignores it."""
    return bool(getattr(arguments, "use_ipex", False)) and not hasattr(trainer, "ipex_optimize_model")


def optimize(model: Any, optimizer: Any, bf16: bool) -> Any:
    """Optimize a model in place for training. Returns its optimizer, which must exist before.

    With `bf16`, the weights become bfloat16, and the optimizer keeps their low-order bits.
    """
    import intel_extension_for_pytorch
    import torch

    model.train()
    dtype = torch.bfloat16 if bf16 else None
    _, optimizer = intel_extension_for_pytorch.optimize(
        model, optimizer=optimizer, dtype=dtype, inplace=True, level="O1"
    )
    return optimizer
