"""Canaries of speed-ups: what they replace exists, with the signatures and the attributes that they use."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import accelerate
import torch
import transformers
from private_names import MovedError, hook
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel, Trainer, TrainerCallback

from cpu_train_stack.speed import decoder_layers, encoder_layers, joining, padding, patterns

SMALL = {
    "vocab_size": 16, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 16, "pad_token_id": 0,
}  # fmt: skip
ROWS = ("input_ids", "attention_mask")


def modelling(family: str) -> Any:
    return importlib.import_module(f"transformers.models.{family}.modeling_{family}")


def config(family: str) -> Any:
    return transformers.AutoConfig.for_model(family.replace("_", "-"), **SMALL)


def of_family(module: Any, suffix: str) -> Any:
    found = joining.named(module, suffix)
    if found is None:
        raise MovedError(f"{module.__name__} has no class for {suffix}")
    return found


def attributes(owner: Any, *names: str) -> None:
    if lacking := [name for name in names if not hasattr(owner, name)]:
        raise MovedError(f"{type(owner).__name__} has no {', '.join(lacking)}")


def skipped_padding() -> bool:
    functions = hook(transformers.modeling_utils, "ALL_ATTENTION_FUNCTIONS")
    hook(functions, "register")
    if not callable(functions[padding.ATTENTION]):
        raise MovedError(f"no attention is called {padding.ATTENTION}")
    for family in padding.ENCODERS:
        module = modelling(family)
        hook(of_family(module, "Model"), "forward", *ROWS)
        hook(next(patterns.classes(module, "Encoder", "Transformer")), "forward", "attention_mask")
        for suffix in ("ForSequenceClassification", "ForTokenClassification", "ForMaskedLM"):
            hook(of_family(module, suffix), "forward", *ROWS, "labels")
    for family in padding.DECODERS:
        module = modelling(family)
        hook(of_family(module, "Model"), "forward", *ROWS, "position_ids", "use_cache")
        hook(of_family(module, "ForCausalLM"), "forward", *ROWS, "labels")
    return True


def skipped_padding_of_answers() -> bool:
    for family in padding.ENCODERS:
        kind = of_family(modelling(family), "ForQuestionAnswering")
        hook(kind, "forward", *ROWS, "start_positions", "end_positions")
        with torch.device("meta"):
            attributes(kind(config(family)), "qa_outputs")
    return True


def balanced_ranks() -> bool:
    hook(Trainer, "_get_train_sampler")
    hook(Trainer, "_run_epoch", "train_dataloader", "epoch")
    if "train_dataloader=train_dataloader" not in inspect.getsource(Trainer):
        raise MovedError("Trainer does not call _run_epoch with train_dataloader=...")
    return True


def gradient_buckets() -> bool:
    hook(Trainer, "_wrap_model", "model")
    options = accelerate.DistributedDataParallelKwargs()
    attributes(options, "gradient_as_bucket_view")
    if "ddp_handler" not in inspect.getsource(accelerate.Accelerator.prepare_model):
        raise MovedError("accelerate's prepare_model does not read ddp_handler")
    return not options.gradient_as_bucket_view


def word_rows() -> bool:
    hook(Trainer, "training_step", "model", "inputs")
    hook(DistributedDataParallel, "register_comm_hook", "state", "hook")
    hook(default_hooks, "allreduce_hook", "process_group", "bucket")
    hook(default_hooks, "bf16_compress_hook", "process_group", "bucket")
    for name in ("parameters", "gradients", "buffer"):
        hook(torch.distributed.GradBucket, name)
    return True


def output_layer() -> bool:
    hook(Trainer, "compute_loss", "model", "inputs", "return_outputs")
    loss = hook(transformers.loss.loss_utils, "ForCausalLMLoss", "logits", "labels", "num_items_in_batch")
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config("llama"))
    if not isinstance(inspect.getattr_static(PreTrainedModel, "loss_function"), property):
        raise MovedError("PreTrainedModel.loss_function is no property")
    if model.loss_function is not loss:
        raise MovedError("the loss function of a Llama is not ForCausalLMLoss")
    model.loss_function = print
    del model._loss_function
    return model.loss_function is loss


def changed(change: Callable[[Any], list[str]], parts: Mapping[str, tuple[str, ...]]) -> bool:
    """Whether an adaptation still replaces these parts of each family's layers: the ends of their names."""
    for family, endings in parts.items():
        found = change(modelling(family))
        if lacking := [end for end in endings if not any(name.endswith(end) for name in found)]:
            raise MovedError(f"{family} computes something else in {', '.join(lacking)}")
    return True


def layers_of_decoders() -> bool:
    rest = ("RMSNorm", "apply_rotary_pos_emb")
    parts = dict.fromkeys(padding.DECODERS, ("DecoderLayer", "MLP", *rest))
    return changed(decoder_layers.change, {**parts, "phi3": ("DecoderLayer", *rest), "olmo2": ("MLP", *rest)})


def layers_of_encoders() -> bool:
    parts: dict[str, tuple[str, ...]] = dict.fromkeys(
        padding.ENCODERS, ("SelfAttention", "Intermediate", "SelfOutput", "Output")
    )
    parts = {**parts, "albert": (), "distilbert": ("SelfAttention", "TransformerBlock")}
    with torch.device("meta"):
        block = modelling("distilbert").TransformerBlock(config("distilbert"))
    attributes(block.ffn, "lin1", "lin2", "activation", "dropout", "ff_chunk", "chunk_size_feed_forward")
    return changed(encoder_layers.change, parts)


def lora() -> bool:
    from peft import LoraConfig, get_peft_model
    from peft.tuners.lora.layer import Linear as LoraLinear

    hook(LoraLinear, "forward", "x")
    if "merge" not in vars(LoraLinear):  # its base has one that only raises
        raise MovedError("peft's Linear has no merge of its own")
    model = get_peft_model(torch.nn.Sequential(torch.nn.Linear(4, 4)), LoraConfig(target_modules=["0"], r=2))
    layer = next(module for module in model.modules() if isinstance(module, LoraLinear))
    names = ("base_layer", "lora_A", "lora_B", "lora_dropout", "scaling", "active_adapters", "disable_adapters")
    attributes(layer, *names, "merged", "get_base_layer")
    attributes(model, "peft_config", "get_base_model")
    if not hasattr(layer, "use_dora") and not hasattr(layer, "lora_variant"):
        raise MovedError("peft's Linear has neither use_dora nor lora_variant")
    hook(Trainer, "train")
    return True


def step_records() -> bool:
    hook(Trainer, "get_batch_samples", "epoch_iterator")
    hook(Trainer, "training_step", "model", "inputs")
    hook(Trainer, "compute_loss", "model", "inputs")
    hook(Trainer, "log", "logs")
    for name in ("on_train_begin", "on_step_end", "on_log", "on_save", "on_evaluate", "on_train_end"):
        hook(TrainerCallback, name, "args", "state", "control")
    hook(torch.autograd.Variable._execution_engine, "queue_callback")
    return True


CANARIES: dict[str, Callable[[], bool]] = {
    "no-padding": skipped_padding,
    "no-padding-answers": skipped_padding_of_answers,
    "balanced-ranks": balanced_ranks,
    "gradient-buckets": gradient_buckets,
    "word-rows": word_rows,
    "output-layer": output_layer,
    "decoder-layers": layers_of_decoders,
    "encoder-layers": layers_of_encoders,
    "lora": lora,
    "step-records": step_records,
}
