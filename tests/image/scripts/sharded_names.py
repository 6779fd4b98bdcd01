"""Sharded models and checkpoints whose weights have other names in memory: checked, and loaded. Two ranks."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM, MixtralConfig, MixtralForCausalLM

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.group.create import gather
from cpu_train_stack.train.model import sharding
from cpu_train_stack.train.output import weights

SIZES = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
SIZES |= {"num_attention_heads": 2, "bos_token_id": 1, "eos_token_id": 2}
OLD = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
CASES: dict[str, tuple[Any, Any, dict[str, str], str]] = {
    "experts": (
        MixtralForCausalLM,
        MixtralConfig(**SIZES, num_key_value_heads=2, num_local_experts=2),
        {},
        "experts.1.w2",
    ),
    "gamma and beta": (BertForMaskedLM, BertConfig(**SIZES), OLD, "attention.output.LayerNorm.beta"),
    "the same names": (BertForMaskedLM, BertConfig(**SIZES), {}, "attention.output.LayerNorm.bias"),
}


def change(folder: Path, names: dict[str, str], gone: str = "") -> None:
    tensors = load_file(folder / "model.safetensors")
    for old, new in names.items():
        tensors = {name.replace(old, new): tensor for name, tensor in tensors.items()}
    kept = {name: tensor for name, tensor in tensors.items() if not gone or gone not in name}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


def error_of(function: Callable[..., object], *arguments: object) -> str:
    try:
        function(*arguments)
    except (UsageError, SystemExit) as error:
        return str(error)
    return ""


rank = dist.get_rank()
scratch = Path(gather(tempfile.mkdtemp() if rank == 0 else None)[0])
for case, (kind, config, names, gone) in CASES.items():
    folder = scratch / case
    trained = kind(config)
    if rank == 0:
        for parameter in trained.parameters():
            torch.nn.init.normal_(parameter)
        trained.save_pretrained(folder / "best")
        kind(config).save_pretrained(folder / "start")
        change(folder / "best", names)
        shutil.copytree(folder / "best", folder / "lacking")
        change(folder / "lacking", {}, gone)
    dist.barrier()
    model = kind.from_pretrained(folder / "start", **sharding.options(2))
    weights.check(folder / "best", model)
    found = error_of(weights.check, folder / "lacking", model)
    assert "lacks the tensor" in found, found
    assert gone in found, found
    weights.restore_shards(model, folder / "best", rank == 0)
    for name, tensor in model.state_dict().items():
        full = sharding.full_tensor(tensor)
        assert rank or torch.equal(full, trained.state_dict()[name]), (case, name)
    assert error_of(weights.restore_shards, model, folder / "lacking", rank == 0) == "2"
    if rank == 0:
        print("ok", case)
