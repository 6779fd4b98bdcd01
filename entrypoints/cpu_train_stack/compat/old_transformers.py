"""The optimizer and the methods of tokenizers that users' own scripts of transformers 4 call.

4.51 removed the optimizer AdamW. 5.0 removed encode_plus, batch_encode_plus and as_target_tokenizer, and ignores
`pad_to_max_length` silently: rows then have different lengths.
"""

from __future__ import annotations

import contextlib
import importlib
import math
from collections.abc import Iterable, Iterator
from typing import Any

from cpu_train_stack.adapt.adaptation import (
    Adaptation,
    Releases,
    Situation,
    add_to_transformers,
    before_method,
    on_import,
)

_OPTIMIZER, _TOKENIZER = "adamw", "encode-plus"


def _add_optimizer(situation: Situation, module: Any) -> None:
    if not hasattr(module, "AdamW"):
        module.AdamW = _adamw(situation)


def _adamw(situation: Situation) -> Any:
    import torch

    class AdamW(torch.optim.Optimizer):
        """AdamW as in transformers 4, whose defaults and whose arithmetic differ from torch's AdamW."""

        def __init__(
            self,
            params: Iterable[Any],
            lr: float = 1e-3,
            betas: tuple[float, float] = (0.9, 0.999),
            eps: float = 1e-6,
            weight_decay: float = 0.0,
            correct_bias: bool = True,
            no_deprecation_warning: bool = False,
        ) -> None:
            del no_deprecation_warning
            options = {"eps": eps, "weight_decay": weight_decay, "correct_bias": correct_bias}
            super().__init__(params, {"lr": lr, "betas": betas, **options})
            situation.report(
                _OPTIMIZER, "AdamW was removed from transformers: the image's own computes the same steps"
            )

        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._change(parameter, group)
            return loss

        def _change(self, parameter: Any, group: dict[str, Any]) -> None:
            state = self.state[parameter]
            if not state:
                state.update(step=0, exp_avg=torch.zeros_like(parameter), exp_avg_sq=torch.zeros_like(parameter))
            state["step"] += 1
            first, second = group["betas"]
            state["exp_avg"].mul_(first).add_(parameter.grad, alpha=1 - first)
            state["exp_avg_sq"].mul_(second).addcmul_(parameter.grad, parameter.grad, value=1 - second)
            size = group["lr"]
            if group["correct_bias"]:
                size *= math.sqrt(1 - second ** state["step"]) / (1 - first ** state["step"])
            parameter.addcdiv_(state["exp_avg"], state["exp_avg_sq"].sqrt().add_(group["eps"]), value=-size)
            if group["weight_decay"]:
                parameter.add_(parameter, alpha=-group["lr"] * group["weight_decay"])

    return AdamW


def _install_optimizer(situation: Situation) -> None:
    def add(_situation: Situation, module: Any) -> None:
        add_to_transformers(module, "AdamW", lambda: importlib.import_module("transformers.optimization").AdamW)

    on_import("transformers.optimization", _add_optimizer)(situation)
    on_import("transformers.training_args", _name_optimizer)(situation)
    on_import("transformers.utils.import_utils", add)(situation)


def _name_optimizer(_situation: Situation, module: Any) -> None:
    """OptimizerNames has the old name, also as a value: TrainingArguments.set_optimizer("adamw_hf")."""
    names = module.OptimizerNames
    refuse = names._missing_
    if not hasattr(names, "ADAMW_HF"):
        names.ADAMW_HF = names.ADAMW_TORCH
        names._missing_ = lambda value: names.ADAMW_TORCH if value == "adamw_hf" else refuse(value)


def add_methods(situation: Situation, module: Any) -> None:
    """Let tokenizers encode as in transformers 4. `module`: transformers.tokenization_utils_base."""
    base = module.PreTrainedTokenizerBase
    if hasattr(base, "encode_plus"):
        return

    def report(old: str, new: str) -> None:
        situation.report(_TOKENIZER, f"tokenizer.{old} is now tokenizer({new})")

    def pad(_tokenizer: Any, options: dict[str, Any]) -> None:
        # transformers 4 also truncated to max_length, and without it padded to the longest row.
        if options.pop("pad_to_max_length", False) and not options.get("padding"):
            if options.get("max_length") is None:
                options["padding"] = "longest"
            else:
                options["padding"] = "max_length"
                if options.get("truncation") is None:
                    options["truncation"] = "longest_first"
            situation.report(_TOKENIZER, f'pad_to_max_length=True is now padding="{options["padding"]}"')

    def encode_plus(
        self: Any, text: Any, text_pair: Any = None, add_special_tokens: bool = True, **options: Any
    ) -> Any:
        if not isinstance(text, str) and not options.get("is_split_into_words"):
            raise TypeError(
                f"encode_plus: found a {type(text).__name__}, expected one text, or a list of words with "
                "is_split_into_words=True"
            )
        report("encode_plus", "text, ...")
        return self(text, text_pair, add_special_tokens=add_special_tokens, **options)

    def batch_encode_plus(
        self: Any, batch_text_or_text_pairs: Any, add_special_tokens: bool = True, **options: Any
    ) -> Any:
        if not isinstance(batch_text_or_text_pairs, (list, tuple)):
            found = type(batch_text_or_text_pairs).__name__
            raise TypeError(f"batch_encode_plus: found a {found}, expected a list of texts, pairs or words")
        report("batch_encode_plus", "texts, ...")
        texts, pairs = list(batch_text_or_text_pairs), None
        if not options.get("is_split_into_words") and texts and not any(isinstance(one, str) for one in texts):
            texts, pairs = [one for one, _ in texts], [other for _, other in texts]
        return self(texts, pairs, add_special_tokens=add_special_tokens, **options)

    @contextlib.contextmanager
    def as_target_tokenizer(self: Any) -> Iterator[None]:
        report("as_target_tokenizer", "text_target=...")
        switch = getattr(self, "_switch_to_target_mode", None)
        self._in_target_context_manager = True
        if switch:
            switch()
        try:
            yield
        finally:
            self._in_target_context_manager = False
            if switch:
                self._switch_to_input_mode()

    for name in ("__call__", "encode"):
        before_method(base, name, pad)
    for method in (encode_plus, batch_encode_plus, as_target_tokenizer):
        setattr(base, method.__name__, method)


ADAPTATIONS = (
    Adaptation(
        _OPTIMIZER,
        "transformers.AdamW exists, and computes the steps of transformers 4",
        (Releases("transformers", "4.51"),),
        _install_optimizer,
        when="if the script uses it",
        upstream="huggingface/transformers#36177",
    ),
    Adaptation(
        _TOKENIZER,
        "tokenizers have encode_plus, batch_encode_plus and as_target_tokenizer, and know pad_to_max_length",
        (Releases("transformers", "5.0"),),
        on_import("transformers.tokenization_utils_base", add_methods),
        when="if the script calls them",
    ),
)
