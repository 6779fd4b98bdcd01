"""Canaries of speed-ups: what they replace exists, with the signatures and the attributes that they use."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import accelerate
import torch
import transformers
from private_names import MovedError, hook
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel, Trainer, TrainerCallback

from cpu_train_stack.adapt import decoder_layers, decoders, encoder_layers, no_padding, padding

SMALL = {
    "vocab_size": 16, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 16, "pad_token_id": 0,
}  # fmt: skip
ROWS = ("input_ids", "attention_mask")


def modelling(family: str) -> Any:
    return importlib.import_module(f"transformers.models.{family}.modeling_{family}")


def config(family: str) -> Any:
    return transformers.AutoConfig.for_model(family.replace("_", "-"), **SMALL)


def attributes(owner: Any, *names: str) -> None:
    if lacking := [name for name in names if not hasattr(owner, name)]:
        raise MovedError(f"{type(owner).__name__} has no {', '.join(lacking)}")


def skipped_padding() -> bool:
    functions = hook(transformers.modeling_utils, "ALL_ATTENTION_FUNCTIONS")
    hook(functions, "register")
    if not callable(functions[padding.ATTENTION]):
        raise MovedError(f"no attention is called {padding.ATTENTION}")
    for family, (prefix, encoder) in no_padding.FAMILIES.items():
        module = modelling(family)
        hook(hook(module, f"{prefix}Model"), "forward", *ROWS)
        hook(hook(module, encoder), "forward", "attention_mask")
        for suffix in ("ForSequenceClassification", "ForTokenClassification", "ForMaskedLM"):
            hook(hook(module, f"{prefix}{suffix}"), "forward", *ROWS, "labels")
    for family, prefix in decoders.FAMILIES.items():
        module = modelling(family)
        hook(hook(module, f"{prefix}Model"), "forward", *ROWS, "position_ids", "use_cache")
        hook(hook(module, f"{prefix}ForCausalLM"), "forward", *ROWS, "labels")
    return True


def skipped_padding_of_answers() -> bool:
    for family, (prefix, _) in no_padding.FAMILIES.items():
        kind = hook(modelling(family), f"{prefix}ForQuestionAnswering")
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


def layers_of_decoders() -> bool:
    for family, prefix in decoder_layers.FAMILIES.items():
        module = modelling(family)
        hook(module, "apply_rotary_pos_emb", "q", "k", "cos", "sin", "unsqueeze_dim")
        with torch.device("meta"):
            layer = hook(module, f"{prefix}DecoderLayer")(config(family), 0)
        hook(type(layer), "forward", "hidden_states")
        hook(type(layer), "__init_subclass__")
        attributes(layer, "self_attn", "input_layernorm", "post_attention_layernorm", "mlp")
        attributes(layer.mlp, "gate_proj", "up_proj", "down_proj", "act_fn")
        for norm in (layer.input_layernorm, layer.post_attention_layernorm):
            attributes(norm, "weight", "variance_epsilon")
            if type(norm) is not getattr(module, f"{prefix}RMSNorm"):
                raise MovedError(f"{prefix}DecoderLayer has other norms than {prefix}RMSNorm")
        hook(getattr(module, f"{prefix}MLP"), "forward", "x")
        hook(getattr(module, f"{prefix}RMSNorm"), "forward", "hidden_states")
    return True


def layers_of_encoders() -> bool:
    for family, prefix in encoder_layers.FAMILIES.items():
        module = modelling(family)
        hook(hook(module, f"{prefix}SelfAttention"), "forward", "hidden_states", "attention_mask")
        hook(hook(module, f"{prefix}Intermediate"), "forward", "hidden_states")
        for suffix in ("SelfOutput", "Output"):
            hook(hook(module, f"{prefix}{suffix}"), "forward", "hidden_states", "input_tensor")
        hook(module.ALL_ATTENTION_FUNCTIONS, "get_interface")
        hook(module, "eager_attention_forward", "attention_mask", "scaling", "dropout")
        own = config(family)
        attention, inner = (getattr(module, f"{prefix}{name}")(own) for name in ("SelfAttention", "Intermediate"))
        attributes(attention, "query", "key", "value", "attention_head_size", "scaling", "dropout")
        attributes(inner, "dense", "intermediate_act_fn")
        attributes(getattr(module, f"{prefix}Output")(own), "dense", "dropout", "LayerNorm")
    module = modelling("distilbert")
    block = hook(module, "TransformerBlock")(transformers.DistilBertConfig(dim=8, n_heads=2, hidden_dim=16))
    hook(type(block), "forward", "hidden_states", "attention_mask")
    attributes(block, "attention", "sa_layer_norm", "ffn", "output_layer_norm")
    attributes(block.attention, "q_lin", "k_lin", "v_lin", "out_lin", "attention_head_size", "scaling", "dropout")
    attributes(block.ffn, "lin1", "lin2", "activation", "dropout", "ff_chunk", "chunk_size_feed_forward")
    return True


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
