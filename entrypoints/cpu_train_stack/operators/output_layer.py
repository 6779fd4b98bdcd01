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
        scores_of, own = self._layer.forward, vars(self._layer).get("forward")

        def forward(states: torch.Tensor) -> torch.Tensor:
            """`states`: [batch, tokens, features]. Computes scores if the labels are those of other tokens."""
            if states.shape[:-1] != labels.shape:
                return scores_of(states)
            self.returned = self._sums(states, labels)
            return self.returned

        self._layer.forward = forward
        self.labels = labels
        try:
            yield
        finally:
            if own is None:
                del self._layer.forward
            else:
                self._layer.forward = own
            self.labels = self.returned = None

    def _sums(self, states: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if self._shift:
            states, labels = states[:, :-1], labels[:, 1:]
        is_kept = labels != IGNORED
        layer = self._layer
        # As autocast would do, but products that are widened (bf16_products) need no rounding to bfloat16.
        dtype = None if bf16_products.is_installed() else bf16_products.autocast_dtype()
        kept = states[is_kept].to(dtype or layer.weight.dtype)
        with torch.autocast("cpu", enabled=False):
            if torch.is_grad_enabled():
                loss = _Loss.apply(kept, layer.weight, layer.bias, labels[is_kept])
                return torch.stack((loss, is_kept.sum().float(), _zeros()))[None]
            found = _losses(kept, layer.weight, layer.bias, labels[is_kept])
        rows = is_kept.nonzero()[:, 0]
        return _zeros(len(labels), 3).index_add(0, rows, found)


def output_layer_of(model: Any, shift: bool) -> OutputLayer | None:
    """The output layer of a language model, None if it has none that is a plain linear layer."""
    layer = model.get_output_embeddings()
    # BigBird changes its attention for good when it computes a short row, as `is_last` does.
    is_known = getattr(model, "main_input_name", "") == "input_ids" and not model.config.is_encoder_decoder
    is_changed = any(hasattr(module, "set_attention_type") for module in model.modules())
    # adapt.lora replaces the forward of a layer whose weight it stores in bf16.
    forward = getattr(vars(layer).get("forward"), "__module__", None) if layer is not None else None
    is_plain = type(layer) is torch.nn.Linear and forward in (None, "cpu_train_stack.adapt.lora")
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


def _formula(ctx: Any) -> Any:
    *inputs, labels = ctx.saved_tensors

    def loss(states: Any, weight: Any, bias: Any) -> Any:
        narrow = (None if tensor is None else tensor.to(states.dtype) for tensor in (weight, bias))
        return functional.cross_entropy(functional.linear(states, *narrow).float(), labels, reduction="sum")

    return loss, tuple(inputs)


class _Loss(torch.autograd.Function):
    """The sum of the cross entropies of tokens, float32 scalar.

    `states`: [tokens, features]; `weight`: [words, features] and `bias`: [words] or None, which are computed in
    the dtype of `states`; `labels`: int64 [tokens].
    """

    @staticmethod
    def forward(ctx: Any, states: Any, weight: Any, bias: Any, labels: Any) -> Any:
        by_states, by_weight, by_bias, _ = ctx.needs_input_grad
        narrow, narrow_bias = weight.to(states.dtype), None if bias is None else bias.to(states.dtype)
        loss = _zeros()
        gradients = (
            torch.empty_like(states) if by_states else None,
            _zeros(*weight.shape) if by_weight else None,
            _zeros(*bias.shape) if by_bias else None,
        )
        size, begin = _group_size(len(weight)), 0
        for group, targets in zip(states.split(size), labels.split(size)):
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
            shares = shares.to(states.dtype)
            if gradients[0] is not None:
                gradients[0][begin : begin + len(group)] = shares @ narrow
            if gradients[1] is not None:
                _add_product(gradients[1], shares.t(), group)
            begin += len(group)
        ctx.save_for_backward(states, weight, bias, labels)
        ctx.gradients, ctx.has_labels = gradients, len(labels) > 0
        return loss

    @staticmethod
    @or_by_formula(_formula)
    def backward(ctx: Any, scale: Any) -> Any:
        if ctx.gradients is None:  # of an earlier backward pass, with retain_graph=True
            return by_formula(ctx, _formula, (scale,))
        gradients, ctx.gradients = ctx.gradients, None
        # Without labels, the mean over tokens divides by zero: as in torch, the gradients are zeros, not NaN.
        scale = scale if ctx.has_labels else 1.0
        return *(None if gradient is None else gradient.mul_(scale) for gradient in gradients), None


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


def _losses(states: Any, weight: Any, bias: Any, labels: Any) -> Any:
    """The cross entropy of each token, a one, and whether its label has the highest score: float32 [tokens, 3]."""
    narrow, narrow_bias = weight.to(states.dtype), None if bias is None else bias.to(states.dtype)
    size, found = _group_size(len(weight)), [_zeros(0, 3)]
    for group, targets in zip(states.split(size), labels.split(size)):
        scores = functional.linear(group, narrow, narrow_bias).float()
        losses = functional.cross_entropy(scores, targets, reduction="none")
        found.append(torch.stack((losses, torch.ones_like(losses), (scores.argmax(-1) == targets).float()), 1))
    return torch.cat(found)
