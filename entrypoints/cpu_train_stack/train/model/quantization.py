"""--load_in_4bit: the frozen weights of linear layers in NF4 with double quantization (QLoRA), by bitsandbytes.

torch and bitsandbytes are imported only if needed.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from cpu_train_stack.cli import packages
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.flags.arguments import TaskArguments

PACKAGE = "bitsandbytes"
_OLDEST = {PACKAGE: "0.50.0", "transformers": "5.0.0"}


def check(arguments: TaskArguments, is_sharded: bool, has_adapter: bool) -> None:
    """Raise UsageError for flags that --load_in_4bit excludes, and for an image that cannot load in 4 bits.

    `is_sharded`: with --fsdp. `has_adapter`: a new adapter, or that of the model's folder.
    """
    if not arguments.load_in_4bit:
        return
    if not has_adapter:
        raise UsageError(
            "--load_in_4bit needs an adapter, because weights in 4 bits cannot be trained: add --use_peft, or "
            "pass an adapter as --model_name_or_path"
        )
    if arguments.merge_adapter:
        raise UsageError(
            "--load_in_4bit and --merge_adapter exclude each other: merge the adapter afterwards into the full "
            "weights, with --model_name_or_path ADAPTER --merge_adapter"
        )
    if is_sharded:
        raise UsageError("--load_in_4bit and --fsdp exclude each other: remove one of them")
    found = packages.versions(_OLDEST)
    if PACKAGE not in found:
        raise UsageError(
            f"--load_in_4bit needs {PACKAGE}, which this image does not have: add it with "
            f"./inv build --with {PACKAGE}, or --with {PACKAGE} after ./inv up"
        )
    for name, oldest in _OLDEST.items():
        if packages.release(found.get(name)) < packages.release(oldest):
            raise UsageError(
                f"--load_in_4bit needs {name} {oldest} or newer, this image has {found.get(name)}: use a newer "
                f"{'pin' if name != PACKAGE else name}"
            )


def silence() -> None:
    """Turn off a warning of bitsandbytes at its import: a kernel for inference was not found on the hub."""
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)


def options(bf16: bool, heads: Collection[str]) -> dict[str, Any]:
    """from_pretrained's options for a model whose linear layers, except the head, are in 4 bits.

    `bf16`: products are computed in bf16, otherwise in fp32. `heads`: the names of the heads; without them,
    transformers looks for the head of a language model.
    """
    import torch
    from transformers import BitsAndBytesConfig

    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16 if bf16 else torch.float32,
        llm_int8_skip_modules=sorted(heads) or None,
    )
    return {"quantization_config": config}


def keep_layout(model: Any) -> None:
    """Prevent bitsandbytes from changing the layout of the weights.

    On CPUs with bf16 instructions, bitsandbytes 0.50.2 rearranges the weights in the first evaluation for a
    product without a backward pass. A training step after it would silently have wrong gradients.
    """
    for layer in model.modules():
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.support_avx512bf16_for_cpu = False


def size_of(weight: Any) -> int:
    """The number of weights in a parameter, also in one that packs two into a byte."""
    state = getattr(weight, "quant_state", None)
    return int(weight.numel()) if state is None else int(state.shape.numel())
