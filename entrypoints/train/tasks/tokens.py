"""How many tokens a step computes, and how many of them are of the data and not padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from entrypoints.cli.errors import UsageError

# Where `labels` say that nothing is to be learnt, as Hugging Face and torch have it.
IGNORED = -100


@dataclass(frozen=True)
class Count:
    """`rows`: of the data, so several in a packed sequence. `computed` = `useful` + padding."""

    rows: int = 0
    computed: int = 0
    useful: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(self.rows + other.rows, self.computed + other.computed, self.useful + other.useful)

    @property
    def overhead(self) -> float | None:
        """Tokens computed for each useful one."""
        return self.computed / self.useful if self.useful else None


def count(inputs: dict[str, Any]) -> Count:
    """Of one batch. A packed batch has positions and no mask; its padding is the zeros at a sequence's end."""
    ids = inputs["input_ids"]
    mask, positions = inputs.get("attention_mask"), inputs.get("position_ids")
    if mask is not None and mask.dim() == 2:
        return Count(len(ids), ids.numel(), int(mask.sum()))
    if positions is None:
        return Count(len(ids), ids.numel(), ids.numel())
    padding = int((positions.flip(-1).cumsum(-1) == 0).sum())
    return Count(int((positions == 0).sum()) - padding, ids.numel(), ids.numel() - padding)


def check_release(task: str) -> None:
    """Raises UsageError where this image's Trainer takes no loss of ours."""
    import inspect

    import transformers

    if "compute_loss_func" not in inspect.signature(transformers.Trainer.__init__).parameters:
        raise UsageError(
            f"{task} needs transformers 4.46 or newer, this image has {transformers.__version__}: take a newer "
            "pin, or that release's own example script with run"
        )


class TokenLoss:
    """Trainer's compute_loss_func: the sum over all tokens that have a label, divided by their number over all
    ranks and accumulated batches, which Trainer counts: the same loss however rows are dealt out.

    `shift`: the model predicts the next token, so a token's label belongs to the position before it.
    """

    def __init__(self, shift: bool, smoothing: float = 0.0) -> None:
        self._shift = shift
        self._smoothing = smoothing

    def __call__(self, outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        logits, targets = aligned(outputs["logits"], labels, self._shift)
        kept = targets != IGNORED
        loss = torch.nn.functional.cross_entropy(
            logits[kept].float(), targets[kept], reduction="sum", label_smoothing=self._smoothing
        )
        return loss / (kept.sum().clamp(min=1) if num_items_in_batch is None else num_items_in_batch)


def aligned(logits: torch.Tensor, labels: torch.Tensor, shift: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores beside what they are scores for."""
    return (logits[:, :-1], labels[:, 1:]) if shift else (logits, labels)


class RowSums:
    """Trainer's preprocess_logits_for_metrics: for each row the summed loss, the tokens, and those that are right.

    The scores of a vocabulary for every token would not fit into memory.
    """

    def __init__(self, shift: bool) -> None:
        self._shift = shift

    def __call__(self, logits: Any, labels: torch.Tensor) -> torch.Tensor:
        scores, targets = aligned(logits[0] if isinstance(logits, tuple) else logits, labels, self._shift)
        sums = []
        for row, target in zip(scores, targets):
            kept = target != IGNORED
            row, target = row[kept].float(), target[kept]
            loss = torch.nn.functional.cross_entropy(row, target, reduction="sum")
            sums.append(torch.stack([loss, kept.sum().float(), (row.argmax(-1) == target).sum().float()]))
        return torch.stack(sums)


class Perplexity:
    """Trainer's compute_metrics over what RowSums leaves. `samples` is how many rows the evaluation really saw."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def __call__(self, evaluated: Any) -> dict[str, float]:
        sums = evaluated.predictions
        if len(sums) != self._rows:
            raise RuntimeError(f"evaluated {len(sums)} rows, expected {self._rows}: padding rows were counted")
        loss, tokens, right = (float(value) for value in sums.astype("float64").sum(axis=0))
        mean = loss / tokens
        return {
            "loss": mean,
            "perplexity": float(torch.tensor(mean, dtype=torch.float64).exp()),
            "accuracy": right / tokens,
            "samples": float(len(sums)),
        }
