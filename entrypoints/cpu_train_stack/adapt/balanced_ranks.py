"""Give all ranks of a step nearly the same work, so that they wait less for each other. Torch-free until used."""

from __future__ import annotations

import functools
import heapq
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Callable

from cpu_train_stack.adapt import no_padding
from cpu_train_stack.adapt.adaptation import Adaptation, Situation, before_method, on_import

NAME = "balanced-ranks"
# The columns that show how many tokens a row has, the first of them that exists.
_COLUMNS = ("attention_mask", "input_ids")


def balance(rows: Sequence[int], lengths: Sequence[int], rows_per_batch: int) -> list[int]:
    """The rows of a step, ordered so that each batch of `rows_per_batch` has about the same number of tokens.

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


def balance_padded(rows: Sequence[int], lengths: Sequence[int], rows_per_batch: int, ranks: int) -> list[int]:
    """The rows of a step for a model that computes padding: a batch takes as long as its longest row.

    Rows of similar lengths form a batch. The batch with the longest row goes to the rank with the least work that
    has not all of its batches. A step whose last batch is incomplete is not changed.
    """
    number, rest = divmod(len(rows), rows_per_batch)
    if rest or number % ranks:
        return list(rows)
    ordered = sorted(rows, key=lambda row: -lengths[row])
    given: list[list[list[int]]] = [[] for _ in range(ranks)]
    open_ranks = [(0, rank) for rank in range(ranks)]
    for begin in range(0, len(rows), rows_per_batch):
        batch = ordered[begin : begin + rows_per_batch]
        work, rank = heapq.heappop(open_ranks)
        given[rank].append(batch)
        if len(given[rank]) < number // ranks:
            heapq.heappush(open_ranks, (work + lengths[batch[0]], rank))
    return [row for batches in zip(*given) for batch in batches for row in batch]


class Balanced:
    """The order of another sampler, with the rows of each step balanced between its ranks.

    Consecutive batches go to consecutive ranks. The rows of a step and the size of a batch do not change.
    """

    def __init__(
        self, sampler: Any, lengths: Sequence[int], rows_per_batch: int, batches_per_step: int, padded: int = 0
    ) -> None:
        """`sampler`: row numbers, the same order on every rank. `lengths`: the tokens in each row.

        `padded`: the number of ranks if the model computes padding, otherwise 0.
        """
        self._sampler = sampler
        self._lengths = lengths
        self._padded = padded
        self._rows_per_batch = rows_per_batch
        self._rows_per_step = rows_per_batch * batches_per_step

    def set_epoch(self, epoch: int) -> None:
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[int]:
        rows, size = iter(self._sampler), self._rows_per_step
        # accelerate fills up an incomplete step with the first rows of the epoch: they keep their order.
        yield from islice(rows, size if len(self) % size else 0)
        while step := list(islice(rows, size)):
            if self._padded:
                yield from balance_padded(step, self._lengths, self._rows_per_batch, self._padded)
            else:
                yield from balance(step, self._lengths, self._rows_per_batch)


def between_ranks(sampler: Any, lengths: Callable[[], Sequence[int] | None], arguments: Any, pads: bool) -> Any:
    """A sampler of Trainer, balanced if there are several ranks and all of them draw the same order.

    An order that the user chose (sequential, a sampler of the script) is kept. `lengths`: called if needed; None
    if they are not known. `arguments`: TrainingArguments. `pads`: the model computes padding. Then, without
    gradient accumulation, no order is faster: a step takes as long as its longest row.
    """
    from accelerate.data_loader import SeedableRandomSampler
    from torch.utils.data import RandomSampler, Sampler

    config = arguments.accelerator_config
    if arguments.world_size == 1 or config.split_batches or (pads and arguments.gradient_accumulation_steps == 1):
        return sampler
    agreed = sampler
    if type(sampler) is RandomSampler and config.use_seedable_sampler:
        # As accelerate does. It would not find the sampler inside of another.
        agreed = SeedableRandomSampler(sampler.data_source, data_seed=arguments.data_seed)
    elif isinstance(sampler, Sampler):
        return sampler  # also because another sampler of torch may draw another order on each rank
    tokens = lengths() if sampler is not None else None
    if tokens is None:
        return sampler
    batches = arguments.gradient_accumulation_steps * arguments.world_size
    ranks = arguments.world_size if pads else 0
    return Balanced(agreed, tokens, arguments.train_batch_size, batches, padded=ranks)


def tokens_of(dataset: Any) -> Sequence[int] | None:
    """The number of tokens in each row of a `datasets.Dataset`. None for other data sets.

    They are read from Arrow's columns, so that no row passes through Python.
    """
    import numpy
    from datasets import Dataset
    from pyarrow import types

    names = [name for name in _COLUMNS if isinstance(dataset, Dataset) and name in dataset.column_names]
    if not names or dataset.format["type"] == "custom":  # a transform of the script makes its rows
        return None
    counts = []
    for table in dataset.select_columns(names[:1]).with_format("arrow").iter(10_000):
        column = table[names[0]].combine_chunks()
        if not _is_list(types, column.type) or column.null_count or column.flatten().null_count:
            return None
        values, ends = column.flatten().to_numpy(zero_copy_only=False), column.value_lengths().to_numpy().cumsum()
        real = numpy.concatenate(([0], (values != 0 if names[0] == _COLUMNS[0] else values >= 0).cumsum()))
        counts.append(numpy.diff(real[ends], prepend=0))
    return [int(count) for part in counts for count in part]


def _is_list(types: Any, kind: Any) -> bool:
    """Whether an Arrow type is a list of numbers. Multiple choice has lists of lists. `types`: pyarrow.types."""
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(is_list and (types.is_integer(kind.value_type) or types.is_boolean(kind.value_type)))


def set_epoch(_trainer: Any, options: dict[str, Any]) -> None:
    """Before Trainer's `_run_epoch`: set the epoch of the sampler.

    transformers 5 skips the batches of a resumed epoch first. Its own call of set_epoch then reaches no sampler:
    the rows would be those of epoch 0.
    """
    rows = options["train_dataloader"]
    if hasattr(rows, "set_epoch"):
        rows.set_epoch(options["epoch"])


def _balance_trainer(situation: Situation, module: Any) -> None:
    original = module.Trainer._get_train_sampler

    @functools.wraps(original)
    def changed(self: Any, *arguments: Any, **named: Any) -> Any:  # transformers 4.46 has no argument for the rows
        dataset = next((rows for rows in (*arguments, *named.values()) if rows is not None), self.train_dataset)
        sampler = original(self, *arguments, **named)
        pads = not no_padding.skips_padding(self.accelerator.unwrap_model(self.model), self.args)
        balanced = between_ranks(sampler, functools.partial(tokens_of, dataset), self.args, pads)
        if balanced is not sampler:
            situation.report(NAME, "the rows of each step are distributed so that ranks have nearly the same work")
        return balanced

    module.Trainer._get_train_sampler = changed
    if hasattr(module.Trainer, "_run_epoch"):  # since transformers 5
        before_method(module.Trainer, "_run_epoch", set_epoch)


ADAPTATIONS = (
    Adaptation(
        NAME, "all ranks of Trainer get nearly the same work; a step has the same rows",
        (no_padding.RELEASES,), on_import("transformers.trainer", _balance_trainer),
        when="if Trainer trains with several ranks",
    ),
)  # fmt: skip
