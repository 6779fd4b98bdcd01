"""Compute no padding in the layers of encoders and decoders (operators.unpadded), where the loss stays the same.

Three kinds of classes of each family of encoders are changed; for decoders, see speed.decoders. The base model
joins the rows of its input, or computes the padded input if it does not support the arguments. The encoder inside
it returns the padded shape, which the pooler and the heads expect. Its padding positions are zeros instead of the
states of padding tokens, so only heads whose loss does not depend on these positions allow it.

A question-answering head normalizes its scores over all positions, including padding. With the adaptation
no-padding-answers, padding gets no probability, which is another loss: `train` has it on, `run` off.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

from cpu_train_stack.adapt.adaptation import Situation
from cpu_train_stack.adapt.changes import after_creation
from cpu_train_stack.cli.import_hooks import after_import
from cpu_train_stack.operators import unpadded
from cpu_train_stack.speed import decoders, joining, patterns
from cpu_train_stack.speed.joining import Use
from cpu_train_stack.speed.padding import ANSWERS, DECODERS, ENCODERS

# Heads that read only the first token of each row, and heads with a label for each token.
_FIRST_TOKEN = ("ForSequenceClassification",)
_LABELS = ("ForTokenClassification", "ForMaskedLM")
# The score of padding as the start or the end of an answer: its exponential is 0, and two of them add up in bf16.
_IMPOSSIBLE = -1e4


def install(use: Use) -> None:
    """Hook attention, the models of all families, and Trainer, which names the models that are not supported."""
    is_hooked = bool(joining.USE)
    joining.USE[:] = [use]
    if is_hooked:
        return
    after_import("transformers.modeling_utils", joining.hook_attention)
    for family in (*ENCODERS, *DECODERS):
        change = _change_encoders if family in ENCODERS else decoders.change
        after_import(f"transformers.models.{family}.modeling_{family}", change)
    after_import("transformers.trainer", _hook_trainer)


def _change_encoders(module: Any) -> None:
    """Change the models of a family of encoders."""
    joining.replace(next(patterns.classes(module, "Encoder", "Transformer")), _encoder)
    joining.replace_model(module, _base, dict.fromkeys(_FIRST_TOKEN, False) | dict.fromkeys(_LABELS, True))
    base, head = joining.named(module, "Model"), joining.named(module, joining.ANSWERS)
    joining.replace(head, functools.partial(_answers, base.__name__))
    joining.HEADS.add(head)


def _base(model: Any, given: dict[str, Any], original: Callable[..., Any], unchanged: Callable[[], Any]) -> Any:
    is_decoder = getattr(model.config, "is_decoder", False)
    layout = joining.layout_for(model, given, "it is a decoder" if is_decoder else None)
    return unchanged() if layout is None else original(model, **joining.joined(model, given, layout))


def _encoder(_model: Any, given: dict[str, Any], _original: object, unchanged: Callable[[], Any]) -> Any:
    out = unchanged()
    layout = unpadded.layout_in(given.get("attention_mask"))
    if layout is not None:
        out.last_hidden_state = unpadded.padded(out.last_hidden_state, layout)
    return out


def _answers(base: str, model: Any, given: dict[str, Any], _original: object, unchanged: Callable[[], Any]) -> Any:
    mask = given.get("attention_mask")
    if mask is None or mask.dim() != 2:
        return unchanged()
    if not joining.USE[0].answers:
        with joining.in_head(f"the loss of question answering depends on it (--adapt {ANSWERS} changes that)"):
            return unchanged()

    def without_padding(_layer: Any, _inputs: Any, scores: Any) -> Any:
        return scores.masked_fill(mask[..., None] == 0, _IMPOSSIBLE)

    reason = joining.module_problem(model, base)
    hook = model.qa_outputs.register_forward_hook(without_padding)
    try:
        with joining.in_head(reason):
            return unchanged()
    finally:
        hook.remove()


def _hook_trainer(module: Any) -> None:
    def check(trainer: Any) -> None:
        model = trainer.accelerator.unwrap_model(trainer.model)
        model = model.get_base_model() if hasattr(model, "get_base_model") else model  # peft's
        family = getattr(getattr(model, "config", None), "model_type", "").replace("-", "_")
        has_head = getattr(model, "main_input_name", "") == "input_ids" and not model.can_generate()
        families = (*ENCODERS, *DECODERS)
        report, name = joining.USE[0].report, type(model).__name__
        if has_head and family not in families:
            report(f"{name} computes padding: it is not a model of {', '.join(families)}")
        elif has_head and trainer.args.torch_compile:
            report(f"{name} computes padding: torch.compile is on")

    after_creation(module.Trainer, check)


def hook(situation: Situation, _sys: Any) -> None:
    """Hook everything for a script or `train`."""
    install(Use(functools.partial(situation.report, is_fallback=True), in_train=situation.in_train))


def exclude_padding(_situation: Situation, _sys: Any) -> None:
    """Let question answering give padding no probability, if its model computes no padding."""
    if joining.USE:
        joining.USE[0].answers = True
