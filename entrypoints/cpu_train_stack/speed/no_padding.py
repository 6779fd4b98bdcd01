"""Compute no padding in the layers of encoders and decoders (operators.unpadded), where the loss stays the same.

Three kinds of classes of each family of encoders are changed; for decoders, see speed.decoders. The base model
joins the rows of its input, or computes the padded input if it does not support the arguments. The encoder inside
it returns the padded shape, which the pooler and the heads expect. Its padding positions are zeros instead of the
states of padding tokens, so only heads whose loss does not depend on these positions allow it.

A new family is a word in ENCODERS or DECODERS, and a run of its test.

A question-answering head normalizes its scores over all positions, including padding. With the adaptation ANSWERS,
padding gets no probability, which is another loss: `train` has it on, `run` off.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

from cpu_train_stack.adapt.adaptation import Adaptation, Releases, Situation, after_creation
from cpu_train_stack.cli.import_hooks import after_import
from cpu_train_stack.operators import unpadded
from cpu_train_stack.speed import decoders, joining, patterns
from cpu_train_stack.speed.joining import Use

NAME = "no-padding"
ANSWERS = "no-padding-answers"
# Of transformers.models.
ENCODERS = ("albert", "bert", "camembert", "distilbert", "electra", "roberta", "xlm_roberta")
DECODERS = ("gemma", "granite", "llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3", "smollm3")
# Heads that read only the first token of each row, and heads with a label for each token.
_FIRST_TOKEN = ("ForSequenceClassification",)
_LABELS = ("ForTokenClassification", "ForMaskedLM")
_ANSWERS = "ForQuestionAnswering"
# The score of padding as the start or the end of an answer: its exponential is 0, and two of them add up in bf16.
_IMPOSSIBLE = -1e4


def skipped() -> int:
    """The tokens of padding that this process has not computed."""
    return joining.USE[0].skipped if joining.USE else 0


def skips_padding(model: Any, arguments: Any) -> bool:
    """Whether the layers of a Trainer's model compute no padding, if its input allows it.

    `arguments`: TrainingArguments.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model  # peft's
    if not joining.USE or arguments.torch_compile:
        return False
    heads = {one for one in joining.HEADS if joining.USE[0].answers or not one.__name__.endswith(_ANSWERS)}
    return not heads.isdisjoint(type(base).__mro__)


# Where attention can be replaced from outside of the models: in 4.55, each encoder has its own.
RELEASES = Releases("transformers", "5.0")
_WHEN = f"for heads whose loss does not depend on padding ({', '.join((*ENCODERS, *DECODERS))})"


def install(use: Use) -> None:
    """Hook attention, the models of all families, and Trainer, which names the models that are not supported."""
    is_hooked = bool(joining.USE)
    joining.USE[:] = [use]
    if is_hooked:
        return
    after_import("transformers.modeling_utils", joining.hook_attention)
    for family in (*ENCODERS, *DECODERS):
        hook = _hook if family in ENCODERS else decoders.hook
        after_import(f"transformers.models.{family}.modeling_{family}", hook)
    after_import("transformers.trainer", _hook_trainer)


def _hook(module: Any) -> None:
    """Change the models of a family of encoders."""
    joining.replace(next(patterns.classes(module, "Encoder", "Transformer")), _encoder)
    joining.replace_model(module, _base, dict.fromkeys(_FIRST_TOKEN, False) | dict.fromkeys(_LABELS, True))
    base, head = joining.named(module, "Model"), joining.named(module, _ANSWERS)
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
    def report(trainer: Any) -> None:
        model = trainer.accelerator.unwrap_model(trainer.model)
        model = model.get_base_model() if hasattr(model, "get_base_model") else model  # peft's
        family = getattr(getattr(model, "config", None), "model_type", "").replace("-", "_")
        has_head = getattr(model, "main_input_name", "") == "input_ids" and not model.can_generate()
        families = (*ENCODERS, *DECODERS)
        note, name = joining.USE[0].note, type(model).__name__
        if has_head and family not in families:
            note(f"{name} computes padding: it is not a model of {', '.join(families)}")
        elif has_head and trainer.args.torch_compile:
            note(f"{name} computes padding: torch.compile is on")

    after_creation(module.Trainer, report)


def _install(situation: Situation) -> None:
    if RELEASES.has(situation):
        report = functools.partial(situation.report, NAME, is_fallback=True)
        install(Use(report, in_train=situation.in_train))


def _install_answers(_situation: Situation) -> None:
    if joining.USE:
        joining.USE[0].answers = True


ADAPTATIONS = (
    Adaptation(
        NAME, "layers compute no padding, if the loss stays the same", (RELEASES,), _install, when=_WHEN
    ),
    Adaptation(
        ANSWERS, "the same for question answering, whose loss then excludes padding", (RELEASES,),
        _install_answers, when=_WHEN, is_default=False,
    ),
)  # fmt: skip
