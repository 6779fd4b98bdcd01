"""Iterable data sets whose batches have different lengths, on several ranks.

Rank 0 reads the batches of all ranks, concatenates and sends them (accelerate's DataLoaderDispatcher), which fails
if their rows are not equally long (huggingface/transformers#26548, accelerate#2023). Here, shorter batches are
padded for the way, and each rank gets its rows with the length that they had. Only rank 0 reads the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.nn.functional import pad

from cpu_train_stack.adapt.adaptation import Situation
from cpu_train_stack.adapt.changes import around

# The key of the sizes that travel with a batch: of each tensor, a row for each of its rows.
_SIZES, _BATCH = "cpu-train-stack/sizes", "cpu-train-stack/batch"
# What hides a position in the padding of a row that shares a batch with a longer one.
_IGNORED = -100


def _tensors(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The tensors of a nested batch, and the names of their keys."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(item, str(key))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item, name)
    elif hasattr(value, "shape"):
        yield name, value


def _changed(value: Any, tensors: Iterator[Any]) -> Any:
    """A copy of a nested batch with other tensors."""
    if isinstance(value, Mapping):
        return type(value)({key: _changed(item, tensors) for key, item in value.items()})  # type: ignore[call-arg]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_changed(item, tensors) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_changed(item, tensors) for item in value)
    return next(tensors) if hasattr(value, "shape") else value


def _with_sizes(batch: Any) -> tuple[Any, list[Any]]:
    """A batch, and the sizes of each row of each of its tensors."""
    if isinstance(batch, Mapping) and _BATCH in batch:
        return batch[_BATCH], batch[_SIZES]
    sizes = [
        torch.tensor([one.shape[1:]] * len(one)).reshape(len(one), one.dim() - 1) for _, one in _tensors(batch)
    ]
    return batch, sizes


def concatenated(batches: list[Any]) -> dict[str, Any]:
    """One batch with the rows of all batches, padded to the longest row, and the sizes that they had."""
    parts, sizes = zip(*map(_with_sizes, batches))
    joined = []
    for same in zip(*(list(_tensors(part)) for part in parts)):
        name, tensors = same[0][0], [tensor for _, tensor in same]
        longest = [max(lengths) for lengths in zip(*(one.shape[1:] for one in tensors))]
        value = _IGNORED if "label" in name and not tensors[0].is_floating_point() else 0
        widths = ([end for size, most in reversed(list(zip(one.shape[1:], longest))) for end in (0, most - size)]
                  for one in tensors)  # fmt: skip
        joined.append(torch.cat([pad(one, width, value=value) for one, width in zip(tensors, widths)]))
    return {_BATCH: _changed(parts[0], iter(joined)), _SIZES: [torch.cat(one) for one in zip(*sizes)]}


def cut(batch: Any) -> Any:
    """The rows of a rank with the length of the longest of them."""
    if not isinstance(batch, Mapping) or _BATCH not in batch:
        return batch
    tensors = [tensor for _, tensor in _tensors(batch[_BATCH])]
    kept = []
    for tensor, sizes in zip(tensors, batch[_SIZES]):
        most = sizes.max(dim=0).values.tolist() if sizes.numel() else []
        part = tensor[(slice(None), *(slice(size) for size in most))]
        kept.append(part.contiguous())  # as a collator's: losses call labels.view(-1)
    return _changed(batch[_BATCH], iter(kept))


def hook(situation: Situation, module: Any) -> None:
    """Change the dispatcher. `module`: accelerate.data_loader."""
    dispatcher = getattr(module, "DataLoaderDispatcher", None)
    if dispatcher is None or not hasattr(module, "concatenate"):
        return

    @around(module, "concatenate")
    def concatenate_ragged(concatenate: Any, data: Any, dim: int = 0) -> Any:
        shapes = {tuple(tuple(one.shape[1:]) for _, one in _tensors(batch)) for batch in data}
        is_padded = any(isinstance(batch, Mapping) and _BATCH in batch for batch in data)
        if dim or (len(shapes) == 1 and not is_padded):
            return concatenate(data, dim=dim)
        situation.report("the rows of an iterable data set have different lengths: each rank gets its own")
        return concatenated(list(data))

    @around(dispatcher, "__iter__")
    def iterate_cut(iterate: Any, self: Any) -> Iterator[Any]:
        for batch in iterate(self):
            yield cut(batch)
