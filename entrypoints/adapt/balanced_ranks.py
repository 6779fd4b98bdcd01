"""Give the ranks of a step as many tokens each, so that they wait less for each other. Torch-free until used."""

from __future__ import annotations

import functools
import heapq
from collections.abc import Iterator, Sequence
from typing import Any, Callable

from entrypoints.adapt import no_padding
from entrypoints.adapt.adaptation import Adaptation, Situation, on_import

NAME = "balanced-ranks"
# The columns that show how many tokens a row has, the first of them that exists.
_COLUMNS = ("attention_mask", "input_ids")


def balance(rows: Sequence[int], lengths: Sequence[int], rows_per_batch: int) -> list[int]:
    """The rows of a step, ordered so that each batch of `rows_per_batch` of them has about as many tokens.

    The longest remaining row goes to the batch with the fewest tokens (Graham 1969) that is not full. A step whose
    last batch is incomplete is not changed.
    """
    if len(rows) % rows_per_batch:
        return list(rows)
    batches: list[list[int]] = [[] for _ in range(len(rows) // rows_per_batch)]
    open_batches = [(0, number) for number in range(len(batches))]
    for row in sorted(rows, key=lambda row: -lengths[row]):
        tokens, number = heapq.heappop(open_batches)
        batches[number].append(row)
        if len(batches[number]) < rows_per_batch:
            heapq.heappush(open_batches, (tokens + lengths[row], number))
    return [row for batch in batches for row in batch]


class Balanced:
    """The order of another sampler, with the rows of each step balanced between its batches.

    Consecutive batches go to consecutive ranks. A step has the same rows as before, and each batch as many rows,
    so the gradient is the same.
    """

    def __init__(self, sampler: Any, lengths: Sequence[int], rows_per_batch: int, batches_per_step: int) -> None:
        """`sampler`: row numbers, the same order on every rank. `lengths`: the tokens in each row."""
        self._sampler = sampler
        self._lengths = lengths
        self._rows_per_batch = rows_per_batch
        self._rows_per_step = rows_per_batch * batches_per_step

    def set_epoch(self, epoch: int) -> None:
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[int]:
        rows, size = list(self._sampler), self._rows_per_step
        # accelerate fills up an incomplete step with the first rows of the epoch: they keep their order.
        first = size if len(rows) % size else 0
        yield from rows[:first]
        for begin in range(first, len(rows), size):
            yield from balance(rows[begin : begin + size], self._lengths, self._rows_per_batch)


def between_ranks(sampler: Any, lengths: Callable[[], Sequence[int] | None], arguments: Any) -> Any:
    """A sampler of Trainer, balanced if there are several ranks and all of them draw the same order.

    `lengths`: called if needed; None if they are not known. `arguments`: TrainingArguments.
    """
    from accelerate.data_loader import SeedableRandomSampler
    from torch.utils.data import RandomSampler, Sampler, SequentialSampler

    config = arguments.accelerator_config
    if arguments.world_size == 1 or config.split_batches:
        return sampler
    agreed = sampler
    if type(sampler) is RandomSampler and config.use_seedable_sampler:
        # As accelerate does. It would not find the sampler inside of another.
        agreed = SeedableRandomSampler(sampler.data_source, data_seed=arguments.data_seed)
    elif isinstance(sampler, Sampler) and type(sampler) is not SequentialSampler:
        return sampler  # another sampler of torch may draw another order on each rank
    tokens = lengths() if sampler is not None else None
    if tokens is None:
        return sampler
    batches = arguments.gradient_accumulation_steps * arguments.world_size
    return Balanced(agreed, tokens, arguments.train_batch_size, batches)


def tokens_of(dataset: Any) -> Sequence[int] | None:
    """The number of tokens in each row of a `datasets.Dataset`. None for other data sets.

    They are read from Arrow's columns, so that no row passes through Python.
    """
    import numpy
    from datasets import Dataset

    names = [name for name in _COLUMNS if isinstance(dataset, Dataset) and name in dataset.column_names]
    if not names or dataset.format["type"] == "custom":  # a transform of the script makes its rows
        return None
    counts = []
    for table in dataset.select_columns(names[:1]).with_format("arrow").iter(10_000):
        column = table[names[0]].combine_chunks()
        if not str(column.type).startswith(("list<", "large_list<", "fixed_size_list<")):
            return None
        values, ends = column.flatten().to_numpy(zero_copy_only=False), column.value_lengths().to_numpy().cumsum()
        real = numpy.concatenate(([0], (values != 0 if names[0] == _COLUMNS[0] else values >= 0).cumsum()))
        counts.append(numpy.diff(real[ends], prepend=0))
    return [int(count) for part in counts for count in part]


def _balance_trainer(situation: Situation, module: Any) -> None:
    original = module.Trainer._get_train_sampler

    @functools.wraps(original)
    def changed(self: Any, train_dataset: Any = None) -> Any:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        sampler = original(self, train_dataset)
        balanced = between_ranks(sampler, functools.partial(tokens_of, dataset), self.args)
        if balanced is not sampler:
            situation.report(NAME, "the rows of each step are distributed so that the ranks have as many tokens")
        return balanced

    module.Trainer._get_train_sampler = changed


ADAPTATIONS = (
    Adaptation(
        NAME, "the ranks of Trainer get as many tokens each; a step has the same rows",
        no_padding.check, on_import("transformers.trainer", _balance_trainer),
    ),
)  # fmt: skip
