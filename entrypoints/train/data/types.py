"""What a run trains on: first checked rows, then what Trainer takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable


@dataclass(frozen=True)
class Rows:
    """The checked rows of a run. `labels` is None where rows have no classes."""

    task: str
    train: Any
    validation: Any
    labels: list[str] | None
    notes: tuple[str, ...]

    def fingerprint(self) -> tuple[Any, ...]:
        """What must be the same on every rank: sizes, contents, and the order of the labels."""
        splits = (self.train, self.validation)
        return (self.task, self.labels, *((len(split), split.digest()) for split in splits if split is not None))


@dataclass(frozen=True)
class Job:
    """What Trainer takes. `metric` is the name that result.json reports before and after training.

    `shift`: the loss is a mean over tokens (tokens.TokenLoss), and whether a label belongs to the position before
    it; None where the model's own loss, a mean over rows, is taken. `reduce_logits`: what is kept of the scores.
    """

    train: Any
    validation: Any
    collate: Any
    compute_metrics: Callable[[Any], dict[str, float]] | None
    metric: str
    max_seq_length: int
    shift: bool | None = None
    reduce_logits: Callable[[Any, Any], Any] | None = None
    notes: tuple[str, ...] = ()
