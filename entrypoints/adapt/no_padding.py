"""Compute no padding in the layers of encoders (operators.unpadded), where the loss stays the same.

Three kinds of classes of each family are changed. The base model joins the rows of its input, or computes the
padded input if it does not support the arguments. The encoder inside it returns the padded shape, which the pooler
and the heads expect. Its padding positions are zeros instead of the states of padding tokens, so only heads whose
loss does not depend on these positions allow it. A question-answering head depends on them: it normalizes over all
positions.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Callable

from entrypoints.adapt.adaptation import Adaptation, Situation, Verdict, after_creation
from entrypoints.cli.import_hooks import after_import
from entrypoints.operators import unpadded

NAME = "no-padding"
# transformers' module: the prefix of its classes, and its encoder.
_FAMILIES = {
    "albert": ("Albert", "AlbertTransformer"),
    "bert": ("Bert", "BertEncoder"),
    "camembert": ("Camembert", "CamembertEncoder"),
    "distilbert": ("DistilBert", "Transformer"),
    "electra": ("Electra", "ElectraEncoder"),
    "roberta": ("Roberta", "RobertaEncoder"),
    "xlm_roberta": ("XLMRoberta", "XLMRobertaEncoder"),
}
_ATTENTION = "sdpa"  # transformers' name of torch's scaled_dot_product_attention
# Heads that read only the first token of each row, and heads with a label for each token.
_FIRST_TOKEN = ("ForSequenceClassification",)
_LABELS = ("ForTokenClassification", "ForMaskedLM")
_IGNORED = -100  # the label of positions that the loss ignores, in torch and transformers
# Below this share of padding, the copies inside attention take longer than the padding (docs/speed.md).
_LEAST = 0.1
_KNOWN = {"input_ids", "attention_mask", "token_type_ids", "position_ids", "return_dict", "num_items_in_batch"}
_OUTPUTS = ("output_hidden_states", "output_attentions")

# Why the head that is being computed needs the states of padding tokens, None if it does not.
_REASON: ContextVar[str | None] = ContextVar("reason", default="its head may depend on padding positions")


@dataclass
class Use:
    """`report`: gets a line about each model and reason, once.

    `in_train`: the labels of padding are known to be ignored, and only fallbacks are reported. `skipped`: the
    tokens of padding that were not computed, in all forward passes.
    """

    report: Callable[[str], None]
    in_train: bool = False
    skipped: int = 0
    lines: set[str] = field(default_factory=set)

    def note(self, line: str) -> None:
        if line not in self.lines:
            self.lines.add(line)
            self.report(line)


# The use of this process, empty before the first `install`.
_USE: list[Use] = []


def skipped() -> int:
    """The tokens of padding that this process has not computed."""
    return _USE[0].skipped if _USE else 0


def check(situation: Situation) -> Verdict:
    """Whether the attention of the installed transformers can be replaced from outside of the models."""
    if "transformers" not in situation.versions:
        return Verdict(False, "transformers is not installed")
    if situation.before("transformers", "5.0.0"):
        return Verdict(False, "it needs transformers 5.0 or newer: in 4.55, each encoder has its own attention")
    return Verdict(True, f"for heads whose loss does not depend on padding ({', '.join(_FAMILIES)})")


def install(use: Use) -> None:
    """Hook attention, the models of all families, and Trainer, which names the models that are not supported."""
    is_hooked = bool(_USE)
    _USE[:] = [use]
    if is_hooked:
        return
    after_import("transformers.modeling_utils", _hook_attention)
    for family in _FAMILIES:
        after_import(f"transformers.models.{family}.modeling_{family}", functools.partial(_hook, family))
    after_import("transformers.trainer", _hook_trainer)


def _hook_attention(module: Any) -> None:
    functions = module.ALL_ATTENTION_FUNCTIONS
    functions[_ATTENTION] = unpadded.attention(functions[_ATTENTION])


def _hook(family: str, module: Any) -> None:
    prefix, encoder = _FAMILIES[family]
    _replace(module, f"{prefix}Model", _base)
    _replace(module, encoder, _encoder)
    for suffix in (*_FIRST_TOKEN, *_LABELS):
        _replace(module, f"{prefix}{suffix}", functools.partial(_head, suffix in _LABELS))


def _replace(module: Any, name: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    changed = getattr(module, name)
    changed.forward = functools.wraps(changed.forward)(change(changed.forward))


def _base(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def forward(self: Any, *args: Any, **options: Any) -> Any:
        if _is_traced():
            return original(self, *args, **options)
        given = _given(signature, self, args, options)
        if _share_of_padding(self.config, given) < _LEAST:
            return original(self, *args, **options)
        use = _USE[0]
        reason = unsupported(self.config, given) or _REASON.get()
        lengths = unpadded.lengths_of(given["attention_mask"]) if reason is None else None
        if lengths is None:
            reason = reason or "the padding is not only on the right"
            use.note(f"{type(self).__name__} computes padding: {reason}")
            return original(self, *args, **options)
        if not use.in_train:
            use.note(f"{type(self).__name__} computes no padding in its layers")
        return original(self, **_joined(self, given, lengths))

    return forward


def _encoder(original: Callable[..., Any]) -> Callable[..., Any]:
    def forward(self: Any, hidden_states: Any, attention_mask: Any = None, *args: Any, **options: Any) -> Any:
        out = original(self, hidden_states, attention_mask, *args, **options)
        if unpadded.is_starts(attention_mask):
            out.last_hidden_state = unpadded.padded(out.last_hidden_state, attention_mask)
        return out

    return forward


def _head(has_labels: bool, original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def forward(self: Any, *args: Any, **options: Any) -> Any:
        if _is_traced():
            return original(self, *args, **options)
        needs_check = has_labels and not _USE[0].in_train
        with _in_head(label_problem(_given(signature, self, args, options)) if needs_check else None):
            return original(self, *args, **options)

    return forward


@contextlib.contextmanager
def _in_head(reason: str | None) -> Iterator[None]:
    token = _REASON.set(reason)
    try:
        yield
    finally:
        _REASON.reset(token)


def _is_traced() -> bool:
    import torch

    return bool(torch.compiler.is_compiling() or torch.jit.is_tracing())


def _given(signature: inspect.Signature, *call: Any) -> dict[str, Any]:
    """The arguments of a call by name, without those that are None."""
    model, args, options = call
    bound = signature.bind(model, *args, **options).arguments
    bound.update(bound.pop("kwargs", {}))
    return {name: value for name, value in bound.items() if value is not None and name != "self"}


def _share_of_padding(config: Any, given: Mapping[str, Any]) -> float:
    """Of all positions, as far as the arguments show it. 0 if their values cannot be read (meta tensors, vmap)."""
    mask, ids, padding = given.get("attention_mask"), given.get("input_ids"), getattr(config, "pad_token_id", None)
    try:
        if mask is not None:
            return float((mask == 0).float().mean())
        return 0.0 if ids is None or padding is None else float((ids == padding).float().mean())
    except RuntimeError:
        return 0.0


def label_problem(given: Mapping[str, Any]) -> str | None:
    """Why a loss over all positions may depend on padding positions."""
    labels, mask = given.get("labels"), given.get("attention_mask")
    if labels is None:
        return "without labels, the caller may use the scores at padding positions"
    if mask is None or labels.shape != mask.shape or bool((labels[mask == 0] == _IGNORED).all()):
        return None
    return f"padding has other labels than {_IGNORED}"


def unsupported(config: Any, given: Mapping[str, Any]) -> str | None:
    """Why the layers cannot compute the rows of these arguments end to end."""
    outputs = [name for name in _OUTPUTS if given.get(name, getattr(config, name, False))]
    others = sorted({name for name, value in given.items() if value is not False} - {*_KNOWN, *_OUTPUTS})
    mask = given.get("attention_mask")
    if outputs or others:
        return f"{(outputs + others)[0]} is not supported"
    if mask is None or mask.dim() != 2:
        return "there is no attention_mask" if mask is None else f"attention_mask has {mask.dim()} dimensions"
    if getattr(config, "is_decoder", False):
        return "it is a decoder"
    if config._attn_implementation != _ATTENTION:
        return f"its attn_implementation is {config._attn_implementation}, not {_ATTENTION}"
    return None


def _joined(model: Any, given: dict[str, Any], lengths: Any) -> dict[str, Any]:
    """The arguments with the tokens of all rows in one row."""
    ids = given["input_ids"]
    is_real = unpadded.real(lengths, ids.shape[1])
    by_token = {"input_ids": ids, "position_ids": _positions(model.embeddings, given)}
    if "token_type_ids" in given:
        by_token["token_type_ids"] = given["token_type_ids"]
    _USE[0].skipped += is_real.numel() - int(is_real.sum())
    joined = {name: values.expand_as(ids)[is_real][None] for name, values in by_token.items()}
    return {**given, **joined, "attention_mask": unpadded.mask_of(lengths, ids.shape[1])}


def _positions(embeddings: Any, given: Mapping[str, Any]) -> Any:
    """The position of each token within its row."""
    import torch

    if "position_ids" in given:
        return given["position_ids"]
    ids = given["input_ids"]
    # RoBERTa's positions start after the index of the padding token.
    own = getattr(embeddings, "create_position_ids_from_input_ids", None)
    return own(ids, embeddings.padding_idx) if own is not None else torch.arange(ids.shape[1])


def _hook_trainer(module: Any) -> None:
    def report(trainer: Any) -> None:
        model = trainer.accelerator.unwrap_model(trainer.model)
        model = model.get_base_model() if hasattr(model, "get_base_model") else model  # peft's
        family = getattr(getattr(model, "config", None), "model_type", "").replace("-", "_")
        is_encoder = getattr(model, "main_input_name", "") == "input_ids" and not model.can_generate()
        if is_encoder and family not in _FAMILIES:
            _USE[0].note(f"{type(model).__name__} computes padding: it is not a model of {', '.join(_FAMILIES)}")
        elif is_encoder and trainer.args.torch_compile:
            _USE[0].note(f"{type(model).__name__} computes padding: torch.compile is on")

    after_creation(module.Trainer, report)


def _install(situation: Situation) -> None:
    if check(situation).applies:
        install(Use(functools.partial(situation.report, NAME)))


def install_in_train(versions: Mapping[str, str], report: Callable[[str], None]) -> None:
    """Install it for `train`, whose losses ignore padding. `report`: gets a line about each fallback."""
    if check(Situation((), versions, "")).applies:
        install(Use(report, in_train=True))


ADAPTATIONS = (
    Adaptation(NAME, "encoders compute no padding in their layers, if the loss stays the same", check, _install),
)
