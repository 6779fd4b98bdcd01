"""The rows and tokens of a batch of tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Count:
    """The tokens of some batches.

    `rows`: of the data, several per packed sequence. `computed` = `useful` + padding.
    """

    rows: int = 0
    computed: int = 0
    useful: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(self.rows + other.rows, self.computed + other.computed, self.useful + other.useful)

    def without(self, padding: int) -> Count:
        """The same, if `padding` tokens of it were not computed."""
        return Count(self.rows, self.computed - padding, self.useful) if padding else self

    @property
    def overhead(self) -> float | None:
        """Tokens computed per useful token."""
        return self.computed / self.useful if self.useful else None


def count(inputs: dict[str, Any]) -> Count:
    """The tokens of one batch: integer tensors [rows, width]. Without `input_ids`: the rows of the first tensor.

    A packed batch has position_ids and no attention_mask; zeros at the end of a sequence's positions are padding.
    A batch of pairs has decoder_input_ids too, and labels that are negative in their padding.
    """
    ids = inputs.get("input_ids") if hasattr(inputs, "get") else None
    if ids is None or ids.dim() != 2:
        return Count(_rows(inputs))
    mask, positions = inputs.get("attention_mask"), inputs.get("position_ids")
    if mask is not None and mask.dim() == 2:
        targets, labels = inputs.get("decoder_input_ids"), inputs.get("labels")
        if targets is None or labels is None:
            return Count(len(ids), ids.numel(), int(mask.sum()))
        return Count(len(ids), ids.numel() + targets.numel(), int(mask.sum()) + int((labels >= 0).sum()))
    if positions is None:
        return Count(len(ids), ids.numel(), ids.numel())
    padding = int((positions.flip(-1).cumsum(-1) == 0).sum())
    return Count(int((positions == 0).sum()) - padding, ids.numel(), ids.numel() - padding)


def _rows(inputs: Any) -> int:
    tensors = inputs.values() if hasattr(inputs, "values") else inputs if isinstance(inputs, (list, tuple)) else ()
    return next((len(one) for one in tensors if getattr(one, "dim", lambda: 0)() > 0), 0)
