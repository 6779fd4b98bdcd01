"""Compute no padding in the layers of encoders and decoders (operators.unpadded), where the loss stays the same.

Three kinds of classes of each family are changed. The base model joins the rows of its input, or computes the
padded input if it does not support the arguments. The encoder inside it returns the padded shape, which the pooler
and the heads expect. Its padding positions are zeros instead of the states of padding tokens, so only heads whose
loss does not depend on these positions allow it.

A question-answering head normalizes its scores over all positions, including padding. With the adaptation ANSWERS,
padding gets no probability, which is another loss: `train` has it on, `run` off.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Callable

from entrypoints.adapt import padding
from entrypoints.adapt.adaptation import Adaptation, Situation, Verdict, after_creation
from entrypoints.cli.import_hooks import after_import
from entrypoints.operators import unpadded

NAME = "no-padding"
ANSWERS = "no-padding-answers"
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
_DECODERS = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
_SCORES = "ForCausalLM"  # of decoders, with a label for each token
# Heads that read only the first token of each row, and heads with a label for each token.
_FIRST_TOKEN = ("ForSequenceClassification",)
_LABELS = ("ForTokenClassification", "ForMaskedLM")
_ANSWERS = "ForQuestionAnswering"
# The score of padding as the start or the end of an answer: its exponential is 0, and two of them add up in bf16.
_IMPOSSIBLE = -1e4
# Below this share of padding, the copies inside attention take longer than the padding (docs/speed.md).
_LEAST = 0.1

# Why the head that is being computed needs the states of padding tokens, None if it does not.
_REASON: ContextVar[str | None] = ContextVar("reason", default="its head may depend on padding positions")


@dataclass
class Use:
    """`report`: gets a line about each model and reason, once.

    `in_train`: the labels of padding are known to be ignored, and only fallbacks are reported. `answers`: answers
    have no probability in padding. `skipped`: the tokens of padding that were not computed, in all forward passes.
    """

    report: Callable[[str], None]
    in_train: bool = False
    answers: bool = False
    skipped: int = 0
    lines: set[str] = field(default_factory=set)

    def note(self, line: str) -> None:
        if line not in self.lines:
            self.lines.add(line)
            self.report(line)


# transformers' attention functions, and ours among them; empty before the import.
_ATTENTION: list[Any] = []
# The use of this process, empty before the first `install`.
_USE: list[Use] = []


def skipped() -> int:
    """The tokens of padding that this process has not computed."""
    return _USE[0].skipped if _USE else 0


def skips_padding(model: Any, arguments: Any) -> bool:
    """Whether the layers of a Trainer's model compute no padding, if its input allows it.

    `arguments`: TrainingArguments.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model  # peft's
    if not _USE or arguments.torch_compile:
        return False
    heads = (*_FIRST_TOKEN, *_LABELS, *((_ANSWERS,) if _USE[0].answers else ()))
    names = {f"{prefix}{head}" for prefix, _ in _FAMILIES.values() for head in heads}
    names |= {f"{prefix}{_SCORES}" for prefix in _DECODERS.values()}
    return any(one.__name__ in names for one in type(base).__mro__)


def check(situation: Situation) -> Verdict:
    """Whether the attention of the installed transformers can be replaced from outside of the models."""
    if "transformers" not in situation.versions:
        return Verdict(False, "transformers is not installed")
    if situation.before("transformers", "5.0.0"):
        return Verdict(False, "it needs transformers 5.0 or newer: in 4.55, each encoder has its own attention")
    return Verdict(
        True, f"for heads whose loss does not depend on padding ({', '.join((*_FAMILIES, *_DECODERS))})"
    )


def install(use: Use) -> None:
    """Hook attention, the models of all families, and Trainer, which names the models that are not supported."""
    is_hooked = bool(_USE)
    _USE[:] = [use]
    if is_hooked:
        return
    after_import("transformers.modeling_utils", _hook_attention)
    for family in (*_FAMILIES, *_DECODERS):
        after_import(f"transformers.models.{family}.modeling_{family}", functools.partial(_hook, family))
    after_import("transformers.trainer", _hook_trainer)


def _hook_attention(module: Any) -> None:
    functions = module.ALL_ATTENTION_FUNCTIONS
    _ATTENTION[:] = [functions, unpadded.attention(functions[padding.ATTENTION])]
    functions.register(padding.ATTENTION, _ATTENTION[1])  # where a script's own attention replaces it


def _hook(family: str, module: Any) -> None:
    prefix, encoder = (_DECODERS[family], None) if family in _DECODERS else _FAMILIES[family]
    _replace(module, f"{prefix}Model", _base)
    for suffix in (_SCORES,) if encoder is None else (*_FIRST_TOKEN, *_LABELS):
        change = functools.partial(_head, f"{prefix}Model", suffix not in _FIRST_TOKEN)
        _replace(module, f"{prefix}{suffix}", change)
    if encoder is not None:
        _replace(module, encoder, _encoder)
        _replace(module, f"{prefix}{_ANSWERS}", functools.partial(_answers, f"{prefix}Model"))


def _replace(module: Any, name: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    changed = getattr(module, name)
    changed.forward = functools.wraps(changed.forward)(change(changed.forward))


def _base(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def forward(self: Any, *args: Any, **options: Any) -> Any:
        if _is_traced():
            return original(self, *args, **options)
        given = padding.given(signature, self, args, options)
        if padding.share(self.config, given) < _LEAST:
            return original(self, *args, **options)
        use = _USE[0]
        reason = padding.unsupported(self.config, given) or _REASON.get() or _attention_problem()
        layout = unpadded.layout_of(given["attention_mask"]) if reason is None else None
        if layout is None:
            reason = reason or "the padding is not only on the right"
            use.note(f"{type(self).__name__} computes padding: {reason}")
            return original(self, *args, **options)
        if not use.in_train:
            use.note(f"{type(self).__name__} computes no padding in its layers")
        joined = _joined(self, given, layout)
        if self.config.model_type not in _DECODERS:
            return original(self, **joined)
        out = original(self, **{**joined, "use_cache": False})
        out.last_hidden_state = unpadded.padded(out.last_hidden_state, layout)
        return out

    return forward


def _attention_problem() -> str | None:
    functions, ours = _ATTENTION
    return None if functions[padding.ATTENTION] is ours else "the script has its own attention"


def _encoder(original: Callable[..., Any]) -> Callable[..., Any]:
    def forward(self: Any, hidden_states: Any, attention_mask: Any = None, *args: Any, **options: Any) -> Any:
        out = original(self, hidden_states, attention_mask, *args, **options)
        layout = unpadded.layout_in(attention_mask)
        if layout is not None:
            out.last_hidden_state = unpadded.padded(out.last_hidden_state, layout)
        return out

    return forward


def _head(base: str, has_labels: bool, original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def forward(self: Any, *args: Any, **options: Any) -> Any:
        if _is_traced():
            return original(self, *args, **options)
        reason = _module_problem(self, base)
        if has_labels and not _USE[0].in_train:
            reason = reason or padding.label_problem(padding.given(signature, self, args, options))
        with _in_head(reason):
            return original(self, *args, **options)

    return forward


def _module_problem(model: Any, base: str) -> str | None:
    """`base`: the class of its base model. A wrapper may compute it again in the backward, outside of the head."""
    if all(kind.__name__ != base for kind in type(model.base_model).__mro__):
        return f"its base model is a {type(model.base_model).__name__}"
    return padding.module_problem(model)


def _answers(base: str, original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def forward(self: Any, *args: Any, **options: Any) -> Any:
        mask = None if _is_traced() else padding.given(signature, self, args, options).get("attention_mask")
        if mask is None or mask.dim() != 2:
            return original(self, *args, **options)
        if not _USE[0].answers:
            with _in_head(f"the loss of question answering depends on it (--adapt {ANSWERS} changes that)"):
                return original(self, *args, **options)

        def without_padding(_layer: Any, _inputs: Any, scores: Any) -> Any:
            return scores.masked_fill(mask[..., None] == 0, _IMPOSSIBLE)

        reason = _module_problem(self, base)
        hook = self.qa_outputs.register_forward_hook(without_padding)
        try:
            with _in_head(reason):
                return original(self, *args, **options)
        finally:
            hook.remove()

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


def _joined(model: Any, given: dict[str, Any], layout: unpadded.Layout) -> dict[str, Any]:
    """The arguments with the tokens of all rows in one row."""
    ids, places = given["input_ids"], layout.places()
    by_token = {"input_ids": ids, "position_ids": padding.positions(model, given)}
    if "token_type_ids" in given:
        by_token["token_type_ids"] = given["token_type_ids"]
    _USE[0].skipped += ids.numel() - len(places)
    joined = {name: values.expand_as(ids).flatten()[places][None] for name, values in by_token.items()}
    return {**given, **joined, "attention_mask": layout.mask}


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


def install_in_train(versions: Mapping[str, str], off: frozenset[str], report: Callable[[str], None]) -> None:
    """Install it for `train`, whose losses ignore padding. `off`: the adaptations that are turned off.

    `report`: gets a line about each fallback.
    """
    if NAME not in off and check(Situation((), versions, "")).applies:
        install(Use(report, in_train=True, answers=ANSWERS not in off))


def _install_answers(_situation: Situation) -> None:
    if _USE:
        _USE[0].answers = True


ADAPTATIONS = (
    Adaptation(NAME, "layers compute no padding, if the loss stays the same", check, _install),
    Adaptation(
        ANSWERS, "the same for question answering, whose loss then excludes padding", check, _install_answers,
        is_default=False,
    ),
)  # fmt: skip
