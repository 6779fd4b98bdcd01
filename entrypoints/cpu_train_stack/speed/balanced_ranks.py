"""Give all ranks of a step nearly the same work, so that they wait less for each other. Torch-free until used."""

from __future__ import annotations

import functools
import heapq
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Callable

from cpu_train_stack.adapt.adaptation import Situation
from cpu_train_stack.adapt.changes import around, before_method
from cpu_train_stack.speed import joining

# The columns that show how many tokens a row has, the first of them that exists.
_COLUMNS = ("attention_mask", "input_ids")
# Row numbers become Python's integers, which need nine times the memory, in parts of this size.
_ROWS_LISTED = 1024


def balance(rows: Sequence[int], lengths: Sequence[int], rows_per_batch: int, padded: int = 0) -> list[int]:
    """The rows of a step, ordered so that its ranks have nearly the same work.

    Without padding, the longest remaining row goes to the batch with the fewest tokens (Graham 1969) that is not
    full. `padded`: the number of ranks if the model computes padding, otherwise 0. A batch then takes as long as
    its longest row: rows of similar lengths form a batch, and the batch with the longest row goes to the rank with
    the least work that has not all of its batches. A step whose last batch is incomplete is not changed.
    """
    batches, rest = divmod(len(rows), rows_per_batch)
    if rest or (padded and batches % padded):
        return list(rows)
    size, parts = (rows_per_batch, padded) if padded else (1, batches)
    ordered = sorted(rows, key=lambda row: -lengths[row])
    given: list[list[list[int]]] = [[] for _ in range(parts)]
    open_parts = [(0, number) for number in range(parts)]
    for begin in range(0, len(rows), size):
        work, number = heapq.heappop(open_parts)
        given[number].append(ordered[begin : begin + size])
        if len(given[number]) * size * parts < len(rows):
            heapq.heappush(open_parts, (work + lengths[ordered[begin]], number))
    return [row for groups in (zip(*given) if padded else given) for group in groups for row in group]


class Shuffled:
    """A sampler with the order of accelerate's SeedableRandomSampler, which makes a Python list of all rows."""

    def __init__(self, rows: int, seed: int) -> None:
        self._rows = rows
        self._seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __len__(self) -> int:
        return self._rows

    def __iter__(self) -> Iterator[int]:
        import torch

        generator = torch.Generator(device="cpu").manual_seed(self._seed + self._epoch)
        # int32 gives the same order as int64.
        order = torch.randperm(self._rows, generator=generator, dtype=torch.int32, device="cpu")
        for part in order.split(_ROWS_LISTED):
            yield from part.tolist()
        self._epoch += 1


class Balanced:
    """The order of another sampler, with the rows of each step balanced between its ranks.

    Consecutive batches go to consecutive ranks. The rows of a step and the size of a batch do not change.
    """

    def __init__(
        self, sampler: Any, lengths: Sequence[int], rows_per_batch: int, batches_per_step: int, padded: int = 0
    ) -> None:
        """`sampler`: row numbers, the same order on every rank. The rest as of `balance`."""
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
            yield from balance(step, self._lengths, self._rows_per_batch, self._padded)


def shuffled(sampler: Any, arguments: Any) -> Any:
    """Trainer's random sampler as one whose order all ranks agree on. Other samplers are not changed.

    accelerate would do this, but it would not find the sampler inside of another. `arguments`: TrainingArguments.
    """
    import torch
    from torch.utils.data import RandomSampler

    if type(sampler) is not RandomSampler or not arguments.accelerator_config.use_seedable_sampler:
        return sampler
    seed = arguments.data_seed
    return Shuffled(len(sampler), torch.random.initial_seed() if seed is None else seed)


def between_ranks(sampler: Any, lengths: Callable[[], Sequence[int] | None], arguments: Any, pads: bool) -> Any:
    """A sampler of Trainer, balanced if there are several ranks and all of them draw the same order.

    An order that the user chose (sequential, a sampler of the script) is kept. `lengths`: called if needed; None
    if they are not known. `arguments`: TrainingArguments. `pads`: the model computes padding. Then, without
    gradient accumulation, no order is faster: a step takes as long as its longest row.
    """
    from torch.utils.data import Sampler

    steps, ranks = arguments.gradient_accumulation_steps, arguments.world_size
    if ranks == 1 or arguments.accelerator_config.split_batches or (pads and steps == 1):
        return sampler
    if sampler is None or isinstance(sampler, Sampler):
        return sampler  # also because another sampler of torch may draw another order on each rank
    tokens = lengths()
    if tokens is None:
        return sampler
    return Balanced(sampler, tokens, arguments.train_batch_size, steps * ranks, padded=ranks if pads else 0)


def of_trainer(trainer: Any, sampler: Any, lengths: Callable[[], Sequence[int] | None]) -> Any:
    """A Trainer's sampler of its training rows, balanced. `lengths`: as for between_ranks."""
    pads = not joining.skips_padding(trainer.accelerator.unwrap_model(trainer.model), trainer.args)
    return between_ranks(sampler, lengths, trainer.args, pads)


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


def hook(situation: Situation, module: Any) -> None:
    """`module`: transformers.trainer."""

    @around(module.Trainer, "_get_train_sampler")
    def changed(original: Any, self: Any, *arguments: Any, **named: Any) -> Any:
        # transformers 4.46 has no argument for the rows.
        dataset = next((rows for rows in (*arguments, *named.values()) if rows is not None), self.train_dataset)
        sampler = shuffled(original(self, *arguments, **named), self.args)
        lengths = self.row_lengths if situation.in_train else functools.partial(tokens_of, dataset)
        balanced = of_trainer(self, sampler, lengths)
        if balanced is not sampler:
            situation.report("the rows of each step are distributed so that ranks have nearly the same work")
        return balanced

    if hasattr(module.Trainer, "_run_epoch"):  # since transformers 5
        before_method(module.Trainer, "_run_epoch", set_epoch)
