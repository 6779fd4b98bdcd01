"""Keep Trainer from scaling the loss of models that average their own loss.

Trainer assumes that a model whose forward has **kwargs divides its loss by `num_items_in_batch`. It then
multiplies the loss by the number of ranks, and does not divide it by the accumulation steps. In transformers 5.0
to 5.24, BERT's classifier and other models have **kwargs only to pass them on: loss and gradients are too large
by ranks x accumulation steps (huggingface/transformers#47688). The source of a forward shows how it uses
**kwargs.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any

from cpu_train_stack.adapt.adaptation import Adaptation, Situation, after_creation, on_import, since

_NAME = "loss-scale"
_ITEMS = "num_items_in_batch"


def divides_by_items(forward: Any) -> bool | None:
    """Whether a forward passes its **kwargs, or the number of items, to the computation of the loss.

    That is a call with "loss" in the function's name, or with the labels as an argument. None without source.
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
    return any(_gets_items(node, rest) for node in ast.walk(function) if isinstance(node, ast.Call))


def _gets_items(call: ast.Call, rest: str | None) -> bool:
    named = {keyword.arg for keyword in call.keywords}
    spread = {ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg is None}
    if _ITEMS not in named and rest not in spread:
        return False
    return "loss" in ast.unparse(call.func).lower() or "labels" in named


def _hook(situation: Situation, module: Any) -> None:
    def stop_scaling(trainer: Any) -> None:
        scales = getattr(trainer, "model_accepts_loss_kwargs", False)
        if not scales or getattr(trainer, "compute_loss_func", None) is not None:
            return
        model = trainer.accelerator.unwrap_model(trainer.model)
        model = model.get_base_model() if hasattr(model, "get_base_model") else model  # peft's
        if not hasattr(model, "accepts_loss_kwargs") and divides_by_items(type(model).forward) is False:
            trainer.model_accepts_loss_kwargs = False
            situation.report(_NAME, f"{type(model).__name__} averages its own loss: Trainer does not scale it")

    after_creation(module.Trainer, stop_scaling)


ADAPTATIONS = (
    Adaptation(
        _NAME,
        "Trainer does not multiply the loss of models that average it by ranks and accumulation steps",
        since(
            "transformers",
            "4.46.0",
            "if Trainer's model averages its own loss",
            "Trainer before transformers 4.46 does not scale the loss",
        ),
        on_import("transformers.trainer", _hook),
    ),
)
