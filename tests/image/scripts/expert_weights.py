"""Models whose weights have other names in memory than in their files: checked, and restored."""

import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.output import weights

SIZES = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
SIZES |= {"num_attention_heads": 2, "bos_token_id": 1, "eos_token_id": 2}
EXPERTS = {**SIZES, "num_key_value_heads": 2, "num_experts": 2, "moe_intermediate_size": 8, "head_dim": 8}
MODELS = (
    (MixtralForCausalLM(MixtralConfig(**SIZES, num_key_value_heads=2, num_local_experts=2)), True),
    (
        Qwen3MoeForCausalLM(Qwen3MoeConfig(**EXPERTS)),
        True,
    ),
    (BertForMaskedLM(BertConfig(**SIZES)), False),  # shares its embeddings
)
for model, has_others in MODELS:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model.save_pretrained(folder)
        weights.check(folder, model)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        for parameter in model.parameters():
            torch.nn.init.zeros_(parameter)
        assert weights.restore(model, folder) is has_others
        if has_others:
            assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
        tensors = load_file(folder / "model.safetensors")
        gone = sorted(name for name in tensors if "layer" in name and "weight" in name)[-1]
        del tensors[gone]
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        found = ""
        try:
            weights.check(folder, model)
        except UsageError as error:
            found = str(error)
        assert f"lacks the tensor '{gone}'" in found, (gone, found)
    print("ok", type(model).__name__)
