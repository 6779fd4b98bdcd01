"""The output layer of a language model with its loss: scores only for tokens that have a label, a few at a time.

The scores [batch, tokens, words] of a vocabulary are the largest tensors of a step, and prompts, padding and words
that are not masked need none. The layer returns sums of the loss in place of the scores, and computes the gradient
of each group of tokens together with its scores, so that the scores of other groups need no memory.

torch 2.13's own `linear_cross_entropy` is slower on CPUs than all scores are (docs/speed.md).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

from cpu_train_stack.operators import bf16_products
from cpu_train_stack.operators.registration import Operator, has_memory
from cpu_train_stack.operators.transforms import by_formula, or_by_formula

IGNORED = -100  # the label of tokens without a loss, in torch and transformers
# Memory of the scores of a group of tokens, in float32. More is faster: oneDNN packs the weights for each group.
_BYTES = 128 << 20
# Memory of a part of a gradient that is added to it, in float32.
_PRODUCT_BYTES = 8 << 20
# Smaller probabilities are not exact in float32.
_SMALL = 1e-30


class OutputLayer:
    """A linear layer of a model that returns sums instead of scores while `labelled` is active.

    The sums are float32 [rows, 3]: the loss, the number of labels, and how many of them have the highest score.
    With gradients, they are those of the whole batch in one row, and the last one is not counted.
    """

    def __init__(self, layer: torch.nn.Linear, shift: bool) -> None:
        """`shift`: a label belongs to the position before its token."""
        self._layer = layer
        self._shift = shift
        self._scores_of: Any = None
        # The same object in each step: torch.compile would compile another one again.
        self._changed = self._forward
        self.labels: Any = None
        self.returned: Any = None

    @property
    def weight(self) -> torch.Tensor:
        """[words, features]."""
        return self._layer.weight

    @contextlib.contextmanager
    def labelled(self, labels: torch.Tensor) -> Iterator[None]:
        """Compute sums for these labels, int64 [batch, tokens], inside the block.

        There, `labels` are these, and `returned` are the last sums.
        """
        own = vars(self._layer).get("forward")
        self._scores_of = self._layer.forward
        self._layer.forward = self._changed
        self.labels = labels
        try:
            yield
        finally:
            if own is None:
                del self._layer.forward
            else:
                self._layer.forward = own
            self.labels = self.returned = None

    def _forward(self, states: torch.Tensor) -> torch.Tensor:
        """`states`: [batch, tokens, features]. Computes scores if the labels are those of other tokens."""
        if states.shape[:-1] != self.labels.shape:
            return self._scores_of(states)
        self.returned = self._sums(states, self.labels)
        return self.returned

    def _sums(self, states: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if self._shift:
            states, labels = states[:, :-1], labels[:, 1:]
        weight, bias = self._layer.weight, self._layer.bias
        # As autocast would do, but products that are widened (bf16_products) need no rounding to bfloat16.
        dtype = (None if bf16_products.is_installed() else bf16_products.autocast_dtype()) or weight.dtype
        with torch.autocast("cpu", enabled=False):
            if torch.is_grad_enabled():
                needs = [each is not None and each.requires_grad for each in (states, weight, bias)]
                loss, *_gradients = LOSS(states, weight, bias, labels, dtype, needs)
                return torch.stack((loss, (labels != IGNORED).sum().float(), _zeros()))[None]
            return LOSSES(states, weight, bias, labels, dtype)


def output_layer_of(model: Any, shift: bool) -> OutputLayer | None:
    """The output layer of a language model, None if it has none that is a plain linear layer."""
    layer = model.get_output_embeddings()
    # BigBird changes its attention for good when it computes a short row, as `is_last` does.
    is_known = getattr(model, "main_input_name", "") == "input_ids" and not model.config.is_encoder_decoder
    is_changed = any(hasattr(module, "set_attention_type") for module in model.modules())
    # speed.lora replaces the forward of a layer whose weight it stores in bf16.
    forward = getattr(vars(layer).get("forward"), "__module__", None) if layer is not None else None
    is_plain = type(layer) is torch.nn.Linear and forward in (None, "cpu_train_stack.speed.lora")
    return OutputLayer(layer, shift) if is_known and is_plain and not is_changed else None


def is_last(output: OutputLayer, model: Any) -> bool:
    """Whether the model returns its output layer's result unchanged, for a short row without labels."""
    with probing(model) as row, output.labelled(row["input_ids"]):
        try:
            returned = model(**row)["logits"]
        except Exception:  # noqa: BLE001 - a model that needs another input
            return False
        return returned is output.returned and getattr(returned, "_version", 1) == 0


@contextlib.contextmanager
def probing(model: Any) -> Iterator[dict[str, torch.Tensor]]:
    """Evaluation mode without gradients, and a row of a few different tokens, int64 [1, 8]."""
    modes = {module: module.training for module in model.modules()}
    tokens = torch.arange(1, 9, device="cpu")[None] % model.get_input_embeddings().weight.shape[0]
    model.eval()
    try:
        with torch.no_grad():
            yield {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    finally:
        for module, mode in modes.items():
            module.training = mode


def working_bytes(output: OutputLayer, tokens: int) -> int:
    """What the loss of a batch of `tokens` needs at most: scores, a copy of the weight, and its gradient.

    Call it under the autocast of the training.
    """
    weight = output.weight
    numbers: int = weight.numel()
    scores = min(_group_size(len(weight)), tokens) * len(weight) * 4
    widens = bf16_products.is_installed()
    dtype = torch.float32 if widens else bf16_products.autocast_dtype() or weight.dtype
    copied = 0 if dtype == weight.dtype else torch.finfo(dtype).bits // 8
    gradient = 4 if weight.requires_grad else 0
    return 3 * scores + numbers * (copied + gradient)


def _group_size(words: int) -> int:
    """The number of tokens in a group."""
    return max(1, _BYTES // (4 * words))


def _loss(states: Any, weight: Any, bias: Any, labels: Any, dtype: Any, needs: Any) -> Any:
    """The sum of the cross entropies of tokens, a float32 scalar, and its gradients.

    `states`: [batch, tokens, features]; `weight`: [words, features] and `bias`: [words] or None, computed in
    `dtype`; `labels`: int64 [batch, tokens]; `needs`: for which of the first three a gradient is computed.
    """
    loss = _zeros()
    gradients = (
        torch.zeros_like(states) if needs[0] else None,
        _zeros(*weight.shape) if needs[1] else None,
        _zeros(*bias.shape) if needs[2] else None,
    )
    if not has_memory(states):
        return loss, *gradients
    is_kept = labels != IGNORED
    kept, narrow, narrow_bias = _narrow(states[is_kept], weight, bias, dtype)
    by_kept = torch.empty_like(kept) if needs[0] else None
    size, begin = _group_size(len(weight)), 0
    for group, targets in zip(kept.split(size), labels[is_kept].split(size)):
        scores = functional.linear(group, narrow, narrow_bias).float()
        shares = scores.softmax(-1)
        found = shares.gather(1, targets[:, None])
        if bool((found > _SMALL).all()):
            loss -= found.log().sum()
        else:
            loss += functional.cross_entropy(scores, targets, reduction="sum")
        del scores
        shares.scatter_(1, targets[:, None], found - 1)
        if gradients[2] is not None:
            gradients[2].add_(shares.sum(0))
        shares = shares.to(dtype)
        if by_kept is not None:
            by_kept[begin : begin + len(group)] = shares @ narrow
        if gradients[1] is not None:
            _add_product(gradients[1], shares.t(), group)
        begin += len(group)
    if gradients[0] is not None and by_kept is not None:
        gradients[0][is_kept] = by_kept.to(states.dtype)
    return loss, *gradients


def _save_loss(ctx: Any, inputs: Any, output: Any) -> None:
    states, weight, bias, labels, ctx.dtype, ctx.needs = inputs
    ctx.save_for_backward(states, weight, bias, labels)
    ctx.gradients = output[1:]
    ctx.mark_non_differentiable(*(each for each in output[1:] if each is not None))


def _loss_formula(ctx: Any) -> Any:
    *inputs, labels = ctx.saved_tensors
    is_kept = labels != IGNORED

    def loss(states: Any, weight: Any, bias: Any) -> Any:
        scores = functional.linear(*_narrow(states[is_kept], weight, bias, ctx.dtype)).float()
        return functional.cross_entropy(scores, labels[is_kept], reduction="sum")

    return loss, tuple(inputs)


@or_by_formula(_loss_formula)
def _loss_backward(ctx: Any, scale: Any, *_others: Any) -> Any:
    if ctx.gradients is None:  # of an earlier backward pass, with retain_graph=True
        return by_formula(ctx, _loss_formula, (scale,))
    gradients, ctx.gradients = ctx.gradients, None
    # Without labels, the mean over tokens divides by zero: as in torch, the gradients are zeros, not NaN.
    scale = torch.where((ctx.saved_tensors[3] != IGNORED).any(), scale, 1.0)
    multiply = torch.Tensor.mul_ if has_memory(scale) else torch.mul  # a graph may return the gradients too
    scaled = (multiply(each, scale) if wanted else None for each, wanted in zip(gradients, ctx.needs))
    return *scaled, None, None, None


def _narrow(states: Any, weight: Any, bias: Any, dtype: Any) -> Any:
    return states.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


def _zeros(*shape: int) -> torch.Tensor:
    """float32 in host memory, whatever the script's defaults are."""
    return torch.zeros(shape, dtype=torch.float32, device="cpu")


def _add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """total += left @ right. The total is float32."""
    if left.dtype == torch.float32:
        total.addmm_(left, right)
        return
    # torch first converts what it adds to float32. A few rows at a time need little memory for that.
    size = max(1, _PRODUCT_BYTES // (4 * total.shape[1]))
    for rows, part in zip(total.split(size), left.split(size)):
        rows.add_(part @ right)


def _losses(states: Any, weight: Any, bias: Any, labels: Any, dtype: Any) -> Any:
    """The sums of each row (OutputLayer), float32 [rows, 3]."""
    sums = _zeros(labels.shape[0], 3)
    if not has_memory(states):
        return sums
    is_kept = labels != IGNORED
    kept, narrow, narrow_bias = _narrow(states[is_kept], weight, bias, dtype)
    size, found = _group_size(len(weight)), [_zeros(0, 3)]
    for group, targets in zip(kept.split(size), labels[is_kept].split(size)):
        scores = functional.linear(group, narrow, narrow_bias).float()
        losses = functional.cross_entropy(scores, targets, reduction="none")
        found.append(torch.stack((losses, torch.ones_like(losses), (scores.argmax(-1) == targets).float()), 1))
    return sums.index_add(0, is_kept.nonzero()[:, 0], torch.cat(found))


_INPUTS = "Tensor states, Tensor weight, Tensor? bias, Tensor labels, ScalarType dtype"
LOSS = Operator(
    f"output_layer({_INPUTS}, bool[] needs) -> (Tensor, Tensor, Tensor, Tensor)",
    *(_loss, _save_loss, _loss_backward),
)
LOSSES = Operator(f"output_layer_of_rows({_INPUTS}) -> Tensor", _losses)
