"""What encoders and decoders without padding share: how they join rows, and when they must not."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Callable

from cpu_train_stack.operators import unpadded
from cpu_train_stack.operators.transforms import is_compiling, is_left_to_torch
from cpu_train_stack.speed import padding

_BASE = "PreTrainedModel"  # the end of the name of the class on which the models of a family are based
# Below this share of padding, joining the rows takes longer than computing the padding (docs/speed.md).
_LEAST = 0.1

# Why the head that is being computed needs the states of padding tokens, None if it does not.
REASON: ContextVar[str | None] = ContextVar("reason", default="its head may depend on padding positions")


@dataclass
class Use:
    """`report`: gets a line about the model and the reason, in each forward pass.

    `in_train`: the labels of padding are known to be ignored, and only fallbacks are reported. `answers`: answers
    have no probability in padding. `skipped`: the tokens of padding that were not computed, in all forward passes.
    """

    report: Callable[[str], None]
    in_train: bool = False
    answers: bool = False
    skipped: int = 0


# transformers' attention functions, and ours among them; empty before the import.
ATTENTION: list[Any] = []
# The use of this process, empty before the first `install`.
USE: list[Use] = []
# The classes with a head whose layers compute no padding, and the end of a name that needs `Use.answers`.
HEADS: set[type] = set()
ANSWERS = "ForQuestionAnswering"


def skipped() -> int:
    """The tokens of padding that this process has not computed."""
    return USE[0].skipped if USE else 0


def skips_padding(model: Any, arguments: Any) -> bool:
    """Whether the layers of a Trainer's model compute no padding, if its input allows it.

    `arguments`: TrainingArguments.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model  # peft's
    if not USE or arguments.torch_compile:
        return False
    heads = {one for one in HEADS if USE[0].answers or not one.__name__.endswith(ANSWERS)}
    return not heads.isdisjoint(type(base).__mro__)


def hook_attention(module: Any) -> None:
    functions = module.ALL_ATTENTION_FUNCTIONS
    ATTENTION[:] = [functions, unpadded.attention(functions[padding.ATTENTION])]
    functions.register(padding.ATTENTION, ATTENTION[1])  # where a script's own attention replaces it


def named(module: Any, suffix: str) -> Any:
    """The class of a family's module with this name after the family's prefix. None if there is none."""
    name = next(name for name in vars(module) if name.endswith(_BASE) and name != _BASE)
    return getattr(module, f"{name[: -len(_BASE)]}{suffix}", None)


def replace_model(module: Any, change: Callable[..., Any], heads: Mapping[str, bool]) -> None:
    """Change the base model of a family's module, and those of these heads that it has.

    `heads`: the end of each name, and whether the head has a label for each token.
    """
    base = named(module, "Model")
    replace(base, change)
    for suffix, has_labels in heads.items():
        kind = named(module, suffix)
        if kind is not None:
            replace(kind, functools.partial(head, base.__name__, has_labels))
            HEADS.add(kind)


def replace(changed: Any, change: Callable[..., Any]) -> None:
    """Compute the forward of a class with `change`, except while it is traced.

    `change` gets the model, the arguments (padding.given), the original forward, and a function that calls the
    original forward with the caller's arguments.
    """
    original = changed.forward
    signature = inspect.signature(original)

    from cpu_train_stack.operators.registration import has_memory

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **options: Any) -> Any:
        if is_compiling() or is_left_to_torch():
            return original(self, *args, **options)
        unchanged = functools.partial(original, self, *args, **options)
        given = padding.given(signature, self, args, options)
        # Without values, as FakeTensorMode and the device meta have none, nobody knows what is padding.
        if any(hasattr(each, "is_meta") and (each.is_meta or not has_memory(each)) for each in given.values()):
            return unchanged()
        return change(self, given, original, unchanged)

    changed.forward = forward


def attention_problem() -> str | None:
    functions, ours = ATTENTION
    return None if functions[padding.ATTENTION] is ours else "the script has its own attention"


def module_problem(model: Any, base: str) -> str | None:
    """`base`: the class of its base model. A wrapper may compute it again in the backward, outside of the head."""
    if all(kind.__name__ != base for kind in type(model.base_model).__mro__):
        return f"its base model is a {type(model.base_model).__name__}"
    return padding.module_problem(model)


@contextlib.contextmanager
def in_head(reason: str | None) -> Iterator[None]:
    token = REASON.set(reason)
    try:
        yield
    finally:
        REASON.reset(token)


def head(
    base: str, has_labels: bool, model: Any, given: dict[str, Any], _original: object, unchanged: Callable[[], Any]
) -> Any:
    """The forward of a model with a head. `base`: the class of its base model.

    `has_labels`: the head has a label for each token; otherwise it reads a real token of each row.
    """
    reason = module_problem(model, base)
    if has_labels and not USE[0].in_train:
        reason = reason or padding.label_problem(given)
    with in_head(reason):
        return unchanged()


def layout_for(model: Any, given: Mapping[str, Any], problem: str | None) -> unpadded.Layout | None:
    """The layout of the rows that a base model gets, None if its layers compute the padding; a note says why.

    `given`: the arguments (padding.given). `problem`: why the model must compute it, if that is known.
    """
    if padding.share(model.config, given) < _LEAST:
        return None
    problem = problem or padding.unsupported(model.config, given) or REASON.get() or attention_problem()
    layout = unpadded.layout_of(given["attention_mask"]) if problem is None else None
    name = type(model).__name__
    if layout is None:
        USE[0].report(f"{name} computes padding: {problem or 'the padding is not only on the right'}")
    elif not USE[0].in_train:
        USE[0].report(f"{name} computes no padding in its layers")
    return layout


def joined(model: Any, given: Mapping[str, Any], layout: unpadded.Layout) -> dict[str, Any]:
    """The arguments with the tokens of all rows in one row."""
    ids, places = given["input_ids"], layout.places()
    by_token = {"input_ids": ids, "position_ids": _positions(getattr(model, "embeddings", None), given)}
    if "token_type_ids" in given:
        by_token["token_type_ids"] = given["token_type_ids"]
    USE[0].skipped += ids.numel() - len(places)
    joined = {name: values.expand_as(ids).flatten()[places][None] for name, values in by_token.items()}
    return {**given, **joined, "attention_mask": layout.mask}


def _positions(embeddings: Any, given: Mapping[str, Any]) -> Any:
    """The position of each token within its row."""
    import torch

    if "position_ids" in given:
        return given["position_ids"]
    ids = given["input_ids"]
    # RoBERTa's positions start after the index of the padding token.
    own = getattr(embeddings, "create_position_ids_from_input_ids", None)
    return own(ids, embeddings.padding_idx) if own is not None else torch.arange(ids.shape[1])
