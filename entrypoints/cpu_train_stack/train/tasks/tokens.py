"""Tokens: the number that a step computes, and losses and metrics that are means over tokens."""

from __future__ import annotations

from typing import Any

import torch

from cpu_train_stack.cli.errors import UsageError

# The label of tokens that the model does not learn, as in Hugging Face and torch.
IGNORED = -100


def check_release(task: str) -> None:
    """Raise UsageError if the image's Trainer does not support `compute_loss_func`."""
    import inspect

    import transformers

    if "compute_loss_func" not in inspect.signature(transformers.Trainer.__init__).parameters:
        raise UsageError(
            f"{task} needs transformers 4.46 or newer, this image has {transformers.__version__}: use a newer "
            "pin, or run the example script of that release with `run`"
        )


def check_evaluated(rows: int, *arrays: Any) -> None:
    """Raise RuntimeError unless each array has `rows` rows. accelerate pads the last batches with further rows."""
    for array in arrays:
        if len(array) != rows:
            raise RuntimeError(f"evaluated {len(array)} rows, expected {rows}: padding rows were counted")


class TokenLoss:
    """Trainer's compute_loss_func: the mean loss over all tokens with a label, of all ranks and accumulated
    batches.

    Trainer counts these tokens. The loss does not depend on the distribution of rows over ranks and batches.
    `shift`: the model predicts the next token, so that a label belongs to the position before its token.
    `smoothing`: --label_smoothing_factor. A task with another loss overrides `_sums`.

    Logits: float [batch, tokens, classes], or the sums of operators.output_layer. Labels: int64 [batch, tokens].
    Loss: float32 scalar.
    """

    def __init__(self, shift: bool) -> None:
        self.shift = shift
        self.smoothing = 0.0

    def __call__(self, outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        loss, tokens = self._sums(outputs["logits"], labels)
        # At least 1: a step may have no label, such as a short row without a masked word.
        return loss / torch.as_tensor(tokens if num_items_in_batch is None else num_items_in_batch).clamp(min=1)

    def _sums(self, logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if logits.dim() == 2:
            return logits[:, 0].sum(), logits[:, 1].sum()
        logits, targets = aligned(logits, labels, self.shift)
        kept = targets != IGNORED
        cross_entropy = torch.nn.functional.cross_entropy
        loss = cross_entropy(logits[kept].float(), targets[kept], reduction="sum", label_smoothing=self.smoothing)
        return loss, kept.sum()


def aligned(logits: torch.Tensor, labels: torch.Tensor, shift: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [batch, tokens, classes] and labels [batch, tokens], aligned; with `shift`, one token shorter."""
    return (logits[:, :-1], labels[:, 1:]) if shift else (logits, labels)


class RowSums:
    """Trainer's preprocess_logits_for_metrics: the loss, the tokens and the correct tokens of each row.

    Input: logits, float [batch, tokens, classes], and labels, int64 [batch, tokens]. Output: float32 [batch, 3].
    The logits of all rows would not fit into memory. The sums of operators.output_layer remain as they are.
    """

    def __init__(self, shift: bool) -> None:
        self._shift = shift

    def __call__(self, logits: Any, labels: torch.Tensor) -> torch.Tensor:
        logits = logits[0] if isinstance(logits, tuple) else logits
        if logits.dim() == 2:
            return torch.as_tensor(logits)
        scores, targets = aligned(logits, labels, self._shift)
        sums = []
        for row, target in zip(scores, targets):
            kept = target != IGNORED
            row, target = row[kept].float(), target[kept]
            loss = torch.nn.functional.cross_entropy(row, target, reduction="sum")
            sums.append(torch.stack([loss, kept.sum().float(), (row.argmax(-1) == target).sum().float()]))
        return torch.stack(sums)


def means(sums: Any) -> tuple[float, float]:
    """The mean loss and the accuracy of the sums of RowSums, float32 [rows, 3]; NaN if no token has a label."""
    loss, tokens, right = (float(value) for value in sums.astype("float64").sum(axis=0))
    return (loss / tokens, right / tokens) if tokens else (float("nan"), float("nan"))


class Perplexity:
    """Trainer's compute_metrics. Predictions: the sums of RowSums. `samples`: the rows evaluated."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def __call__(self, evaluated: Any) -> dict[str, float]:
        return self.of(evaluated.predictions)

    def of(self, sums: Any) -> dict[str, float]:
        """The metrics of the sums, float32 [rows, 3]."""
        check_evaluated(self._rows, sums)
        loss, accuracy = means(sums)
        perplexity = float(torch.tensor(loss, dtype=torch.float64).exp())
        return {"loss": loss, "perplexity": perplexity, "accuracy": accuracy, "samples": float(len(sums))}
