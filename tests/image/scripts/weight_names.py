"""Checkpoints whose names of weights are not those that the model's own files have: checked, and restored."""

import errno
import tempfile
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import peft
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForSequenceClassification, MixtralConfig, MixtralForCausalLM

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.output import weights

SIZES = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
SIZES |= {"num_attention_heads": 2}
FILE = "model.safetensors"


def renamed(folder: Path, names: dict[str, str], gone: str = "") -> None:
    tensors = {name: tensor for name, tensor in load_file(folder / FILE).items() if not gone or gone not in name}
    for old, new in names.items():
        tensors = {name.replace(f"LayerNorm.{old}", f"LayerNorm.{new}"): tensors[name] for name in tensors}
    save_file(tensors, folder / FILE, metadata={"format": "pt"})


def refused(folder: Path, model: object, load: bool = False) -> str:
    try:
        weights.restore(model, folder) if load else weights.check(folder, model)
    except UsageError as error:
        return str(error)
    return ""


def is_equal(model: torch.nn.Module, other: torch.nn.Module) -> bool:
    state = other.state_dict()
    return all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def legacy(start_is_old: bool, checkpoint_is_old: bool) -> None:
    old = {"weight": "gamma", "bias": "beta"}
    with tempfile.TemporaryDirectory() as scratch:
        start, checkpoint = Path(scratch) / "start", Path(scratch) / "checkpoint-1"
        trained = BertForSequenceClassification(BertConfig(**SIZES))
        for parameter in trained.parameters():
            torch.nn.init.normal_(parameter)
        BertForSequenceClassification(BertConfig(**SIZES)).save_pretrained(start)
        trained.save_pretrained(checkpoint)
        renamed(start, old if start_is_old else {})
        renamed(checkpoint, old if checkpoint_is_old else {})
        model = BertForSequenceClassification.from_pretrained(start)
        assert refused(checkpoint, model) == "", refused(checkpoint, model)
        assert weights.restore(model, checkpoint) is checkpoint_is_old
        assert not checkpoint_is_old or is_equal(model, trained)
        renamed(checkpoint, {}, gone="attention.output.LayerNorm")
        assert "lacks the tensor 'bert.encoder.layer.0.attention.output.LayerNorm." in refused(checkpoint, model)
        assert "lack the tensor 'bert.encoder.layer.0.attention.output.LayerNorm." in refused(
            checkpoint, model, load=True
        )
    print("ok", start_is_old, checkpoint_is_old)


def experts() -> None:
    """A checkpoint with the names in memory: joined experts."""
    with tempfile.TemporaryDirectory() as scratch:
        start, checkpoint = Path(scratch) / "start", Path(scratch) / "checkpoint-1"
        trained = MixtralForCausalLM(MixtralConfig(**SIZES, num_key_value_heads=2, num_local_experts=2))
        trained.save_pretrained(start)
        trained.config.save_pretrained(checkpoint)
        save_file(trained.state_dict(), checkpoint / FILE, metadata={"format": "pt"})
        model = MixtralForCausalLM.from_pretrained(start)
        assert refused(checkpoint, model) == "", refused(checkpoint, model)
        assert weights.restore(model, checkpoint) is False
        renamed(checkpoint, {}, gone="down_proj")
        assert "down_proj'" in refused(checkpoint, model)
        assert "down_proj'" in refused(checkpoint, model, load=True)
        with patch.object(Path, "open", side_effect=OSError(errno.ESTALE, "stale")), suppress(OSError):
            raise AssertionError(refused(checkpoint, model))  # a file server that fails is no broken file
        (checkpoint / FILE).write_bytes(b"broken")
        assert "model.safetensors is broken: delete" in refused(checkpoint, model)
    print("ok experts")


def old_peft() -> None:
    """peft before 0.6, whose function has fewer parameters."""
    now = peft.get_peft_model_state_dict
    model = peft.get_peft_model(
        BertForSequenceClassification(BertConfig(**SIZES)), peft.LoraConfig(target_modules=["query"])
    )

    def old(model: object, state_dict: object = None, adapter_name: str = "default") -> object:
        return now(model, state_dict, adapter_name)

    with patch.object(peft, "get_peft_model_state_dict", old), tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(scratch)
        assert refused(Path(scratch), model) == ""
    print("ok peft")


for start_is_old in (False, True):
    for checkpoint_is_old in (False, True):
        legacy(start_is_old, checkpoint_is_old)
experts()
old_peft()
