"""Losses and gradients of models that do not divide by the number of items themselves are not multiplied.

Trainer takes a model whose forward has **kwargs for one that divides its loss by `num_items_in_batch`; it then
multiplies by the number of ranks and leaves out the division by the accumulation steps. In transformers 5.0 to
5.23 BERT's classifier and others have **kwargs only to pass them on: loss and gradients are too large by ranks x
accumulation steps (huggingface/transformers#47688). What a forward does is read from its source.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from types import ModuleType
from typing import Any

from entrypoints.adapt.adaptation import Adaptation, Situation, Verdict
from entrypoints.cli.import_hooks import after_import

_NAME = "loss-scale"
_ITEMS = "num_items_in_batch"


def divides_by_items(forward: Any) -> bool | None:
    """Whether a forward hands its **kwargs, or the number of items, to what computes the loss. None: unreadable.

    That is a call of something with "loss" in its name, or one that is handed the labels as well.
    """
    try:
        source = textwrap.dedent(inspect.getsource(inspect.unwrap(forward)))
        tree = ast.parse(source)
    except (OSError, TypeError, SyntaxError):
        return None
    function = next((node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)), None)
    if function is None:
        return None
    rest = function.args.kwarg.arg if function.args.kwarg else None
    return any(_is_handed_items(node, rest) for node in ast.walk(function) if isinstance(node, ast.Call))


def _is_handed_items(call: ast.Call, rest: str | None) -> bool:
    named = {keyword.arg for keyword in call.keywords}
    spread = {ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg is None}
    if _ITEMS not in named and rest not in spread:
        return False
    return "loss" in ast.unparse(call.func).lower() or "labels" in named


def _hook(situation: Situation, module: ModuleType) -> None:
    init = module.Trainer.__init__

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **options: Any) -> None:  # noqa: N807 - it is one
        init(self, *args, **options)
        if (
            not getattr(self, "model_accepts_loss_kwargs", False)
            or getattr(self, "compute_loss_func", None) is not None
        ):
            return
        model = self.accelerator.unwrap_model(self.model)
        model = model.get_base_model() if hasattr(model, "get_base_model") else model  # peft's
        if not hasattr(model, "accepts_loss_kwargs") and divides_by_items(type(model).forward) is False:
            self.model_accepts_loss_kwargs = False
            situation.say(_NAME, f"{type(model).__name__} averages its own loss: Trainer leaves it as it is")

    module.Trainer.__init__ = __init__


def _look(situation: Situation) -> Verdict:
    if situation.since("transformers", "4.46.0"):
        return Verdict(True, "where Trainer's model has such a forward")
    return Verdict(False, "Trainer does not multiply before transformers 4.46")


ADAPTATIONS = (
    Adaptation(
        _NAME,
        "Trainer does not multiply the loss of models that average it themselves by ranks and accumulation",
        _look,
        lambda situation: after_import("transformers.trainer", functools.partial(_hook, situation)),
    ),
)
