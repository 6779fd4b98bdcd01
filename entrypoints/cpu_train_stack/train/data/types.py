"""The data of a run: first checked rows, then the input of Trainer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

from cpu_train_stack.train.flags.arguments import Task


@dataclass(frozen=True)
class Rows:
    """The checked rows of a run. `labels` is None for tasks without classes.

    `problem_type`: of a text classifier, as in Hugging Face's configurations.
    """

    task: Task
    train: Any
    validation: Any
    labels: list[str] | None
    notes: tuple[str, ...]
    problem_type: str | None = None

    def fingerprint(self) -> tuple[Any, ...]:
        """Sizes, contents and the order of the labels, which must be the same on every rank."""
        splits = (self.train, self.validation)
        return (
            self.task.name,
            self.problem_type,
            self.labels,
            *((len(split), split.digest) for split in splits if split is not None),
        )


@dataclass(frozen=True)
class TrainerInputs:
    """The input of Trainer. `metric`: the name of the metric in result.json.

    `loss`: a tokens.TokenLoss, which is a mean over tokens; None for the model's own loss, a mean over rows.
    `reduce_logits`: Trainer's preprocess_logits_for_metrics, (logits, labels) -> tensors to keep, which are
    smaller than the logits. `write`: generates texts during evaluation, (model, batch) -> int64 [rows, tokens];
    `reduce_logits` then gets (logits, texts). `check_model`: raises UsageError for a model that does not suit the
    data. It runs the model, which is a collective for a sharded model.
    """

    train: Any
    validation: Any
    collate: Any
    compute_metrics: Callable[[Any], dict[str, float]] | None
    metric: str
    max_seq_length: int
    loss: Any = None
    reduce_logits: Callable[[Any, Any], Any] | None = None
    write: Callable[[Any, Any], Any] | None = None
    check_model: Callable[[Any], None] = lambda _model: None
    notes: tuple[str, ...] = ()

    @property
    def shift(self) -> bool | None:
        """Whether the label of a token belongs to the position before it; None for the model's own loss."""
        return None if self.loss is None else self.loss.shift


def of_both(data: Any, convert: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Convert the training and the validation data of Splits or Rows. None for a split that is not used."""
    train, validation = (None if part is None else convert(part) for part in (data.train, data.validation))
    return train, validation
