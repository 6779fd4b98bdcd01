"""Checks layers whose weights are in 4 bits, and an adapter that was trained over them. Needs bitsandbytes.

Usage: four_bits.py MODEL ADAPTER
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import transformers

from cpu_train_stack.train.model import quantization


def packed(weight: Any) -> Any:
    from bitsandbytes.nn import Params4bit

    stored = Params4bit(weight, requires_grad=False, quant_type="nf4", compress_statistics=True).to("cpu")
    assert stored.dtype == torch.uint8
    return stored


def main(model: str, adapter: str) -> None:
    quantization.silence()
    import decoder_layers
    import peft
    from peft.tuners.lora.bnb import Linear4bit

    assert hasattr(Linear4bit.forward, "__wrapped__"), "peft's layer is not changed"
    decoder_layers.adapters(packed)
    base = transformers.AutoModelForCausalLM.from_pretrained(model)
    weights = peft.PeftModel.from_pretrained(base, adapter).named_parameters()
    print("loaded", sum(weight.numel() for name, weight in weights if "lora" in name))


if __name__ == "__main__":
    main(*sys.argv[1:])
