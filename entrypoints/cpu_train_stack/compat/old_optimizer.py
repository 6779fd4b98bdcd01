"""The optimizer AdamW that transformers 4.51 removed, which users' own scripts create."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from cpu_train_stack.adapt.adaptation import Situation


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


def name_optimizer(_situation: Situation, module: Any) -> None:
    """OptimizerNames has the old name, also as a value: TrainingArguments.set_optimizer("adamw_hf")."""
    names = module.OptimizerNames
    refuse = names._missing_
    if not hasattr(names, "ADAMW_HF"):
        names.ADAMW_HF = names.ADAMW_TORCH
        names._missing_ = lambda value: names.ADAMW_TORCH if value == "adamw_hf" else refuse(value)
