"""One rank of a check of every collective, type, operation and shape against a computed reference.

    torchrun --nproc-per-node N collectives.py [--backend ccl]

Each rank computes the inputs of all ranks from seeds. Rank 0 prints one line. Raises if a result is wrong.
"""

from __future__ import annotations

import argparse
import importlib
import operator
from datetime import timedelta
from functools import reduce

import torch
import torch.distributed as dist
from inputs import FLOATS, TYPES, layouts, make, operations
from special import extremes, inference

ReduceOp = dist.ReduceOp
if torch.__version__ < "1.13":  # their names in torch 1.12 and 1.10
    for name, old in (
        ("all_gather_into_tensor", "_all_gather_base"),
        ("reduce_scatter_tensor", "_reduce_scatter_base"),
        ("get_global_rank", "_get_global_rank"),
    ):
        setattr(dist, name, getattr(dist.distributed_c10d, old))


class CollectiveCheck:
    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self.count = 0

    def equal(self, actual: torch.Tensor, expected: torch.Tensor, *what: object) -> None:
        self.count += 1
        if actual.dtype != expected.dtype or not torch.equal(actual, expected):
            raise AssertionError(f"rank {self.rank} of {self.size}: {what}: found {actual}, expected {expected}")

    def all_equal(self, actual: list[torch.Tensor], expected: list[torch.Tensor], *what: object) -> None:
        if len(actual) != len(expected):
            raise AssertionError(f"{what}: found {len(actual)} tensors, expected {len(expected)}")
        for one, other in zip(actual, expected):  # noqa: B905 - Python 3.9 has no strict
            self.equal(one, other, *what)

    def place(self, rank: int) -> int:
        """The rank in the job."""
        return dist.get_global_rank(self.group, rank) if self.group else rank

    def inputs(self, dtype: torch.dtype, shape: tuple[int, ...]) -> list[torch.Tensor]:
        return [make(dtype, shape, seed=rank + 1) for rank in range(self.size)]

    def reductions(self, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        parts = self.inputs(dtype, shape)
        for op, reducer in operations(dtype).items():
            expected = reduce(reducer, parts)
            for tensor in layouts(parts[self.rank]):
                dist.all_reduce(tensor, op, group=self.group)
                self.equal(tensor, expected, "all_reduce", dtype, shape, op)
            for root in range(self.size):
                tensor = parts[self.rank].clone()
                dist.reduce(tensor, self.place(root), op, group=self.group)
                wanted = expected if root == self.rank else parts[self.rank]
                self.equal(tensor, wanted, "reduce", dtype, shape, op)
        if dtype in FLOATS and hasattr(ReduceOp, "AVG"):  # since torch 1.11
            tensor = parts[self.rank].clone()
            dist.all_reduce(tensor, ReduceOp.AVG, group=self.group)
            self.equal(tensor, reduce(operator.add, parts) / self.size, "average", dtype, shape)

    def scattered_reductions(self, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        parts = [make(dtype, (self.size, *shape), seed=rank + 1) for rank in range(self.size)]
        for op, reducer in operations(dtype).items():
            expected = reduce(reducer, parts)[self.rank]
            output = torch.empty(shape, dtype=dtype)
            dist.reduce_scatter_tensor(output, parts[self.rank].flatten(0, 1), op, group=self.group)
            self.equal(output, expected, "reduce_scatter_tensor", dtype, shape, op)
            output = torch.empty(shape, dtype=dtype)
            dist.reduce_scatter(output, list(parts[self.rank]), op, group=self.group)
            self.equal(output, expected, "reduce_scatter", dtype, shape, op)

    def uneven_reduce_scatter(self) -> None:
        ranks = range(self.size)
        lists = [[make(torch.float32, (to + 1,), seed=me * 10 + to) for to in ranks] for me in ranks]
        output = torch.empty(self.rank + 1)
        dist.reduce_scatter(output, lists[self.rank], group=self.group)
        expected = reduce(operator.add, [parts[self.rank] for parts in lists])
        self.equal(output, expected, "uneven reduce_scatter")

    def moves(self, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        parts = self.inputs(dtype, shape)
        mine = parts[self.rank]
        for root in range(self.size):
            for tensor in layouts(mine):
                dist.broadcast(tensor, self.place(root), group=self.group)
                self.equal(tensor, parts[root], "broadcast", dtype, shape)
        for tensor in layouts(mine):
            outputs = [torch.empty_like(tensor) for _ in parts]
            dist.all_gather(outputs, tensor, group=self.group)
            self.all_equal(outputs, parts, "all_gather", dtype, shape)
        for root in range(self.size):
            outputs = [torch.empty_like(mine) for _ in parts]
            dist.gather(mine, outputs if root == self.rank else None, self.place(root), group=self.group)
            if root == self.rank:
                self.all_equal(outputs, parts, "gather", dtype, shape)
            output = torch.empty_like(mine)
            dist.scatter(output, parts if root == self.rank else None, self.place(root), group=self.group)
            self.equal(output, parts[self.rank], "scatter", dtype, shape)
        joined = torch.empty((self.size, *shape), dtype=dtype)
        dist.all_gather_into_tensor(joined.flatten(0, 1) if shape else joined, mine, group=self.group)
        self.equal(joined, torch.stack(parts), "all_gather_into_tensor", dtype, shape)
        outputs = [torch.empty_like(mine) for _ in parts]
        dist.all_to_all(outputs, [mine.clone() for _ in parts], group=self.group)
        self.all_equal(outputs, parts, "all_to_all", dtype, shape)

    def uneven_moves(self) -> None:
        def rows(source: int, target: int) -> torch.Tensor:
            return make(torch.float32, ((source + 2 * target) % 4, 3), seed=source * 10 + target)

        sent = [rows(self.rank, target) for target in range(self.size)]
        expected = [rows(source, self.rank) for source in range(self.size)]
        output = torch.empty(sum(map(len, expected)), 3)
        sizes = [len(part) for part in expected], [len(part) for part in sent]
        dist.all_to_all_single(output, torch.cat(sent), *sizes, group=self.group)
        self.equal(output, torch.cat(expected), "uneven all_to_all_single")
        outputs = [torch.empty_like(part) for part in expected]
        dist.all_to_all(outputs, sent, group=self.group)
        self.equal(torch.cat(outputs), torch.cat(expected), "uneven all_to_all")
        shapes = [(rank, 2) for rank in range(self.size)]
        outputs = [torch.empty(shape) for shape in shapes]
        dist.all_gather(outputs, make(torch.float32, shapes[self.rank], seed=self.rank), group=self.group)
        for rank, found in enumerate(outputs):
            self.equal(found, make(torch.float32, shapes[rank], seed=rank), "uneven all_gather")

    def messages(self) -> None:
        """Tags out of order, no elements, any source."""
        if self.rank == 0:
            for other in range(1, self.size):
                works = [
                    dist.isend(
                        make(torch.int64, (5 * tag,), seed=tag), self.place(other), group=self.group, tag=tag
                    )
                    for tag in range(4)
                ]
                for work in filter(None, works):
                    work.wait()
        else:
            for tag in (2, 0, 3, 1):
                output = torch.empty(5 * tag, dtype=torch.int64)
                dist.recv(output, self.place(0), group=self.group, tag=tag)
                self.equal(output, make(torch.int64, (5 * tag,), seed=tag), "recv", tag)
        dist.barrier(group=self.group)
        if self.rank == 0:
            seen = set()
            for _ in range(self.size - 1):
                output = torch.empty(1, dtype=torch.int64)
                source = dist.recv(output, group=self.group)
                self.equal(output, torch.tensor([source]), "recv from any source")
                seen.add(source)
            if len(seen) != self.size - 1:
                raise AssertionError(f"expected messages of {self.size - 1} ranks, found ranks {seen}")
        else:
            dist.send(torch.tensor([dist.get_rank()]), self.place(0), group=self.group)

    def coalesced(self) -> None:
        tensors = [torch.full((n,), self.rank + 1.0) for n in (1, 4, 0, 3)]
        total = self.size * (self.size + 1) / 2
        with dist._coalescing_manager(self.group):
            for tensor in tensors:
                dist.all_reduce(tensor, group=self.group)
        for tensor in tensors:
            self.equal(tensor, torch.full_like(tensor, total), "all_reduce_coalesced")

    def large(self, dtype: torch.dtype) -> None:
        """Tensors that are transferred in several parts, the last of which is small; two calls in flight."""
        parts = self.inputs(dtype, (300_007,))
        expected = reduce(operator.add, parts)
        tensors = [parts[self.rank].clone(), parts[self.rank][3:].clone()]
        works = [dist.all_reduce(tensor, group=self.group, async_op=True) for tensor in tensors]
        for work in filter(None, works):
            work.wait()
        self.equal(tensors[0], expected, "large all_reduce", dtype)
        if dtype in (torch.float32, torch.bfloat16):  # several chunks between nodes, the last of which is uneven
            several = torch.cat([parts[self.rank]] * 9)
            dist.all_reduce(several, group=self.group)
            self.equal(several, torch.cat([expected] * 9), "all_reduce in chunks", dtype)
        self.equal(tensors[1], expected[3:], "second large all_reduce", dtype)
        joined = torch.empty(self.size * parts[0].numel(), dtype=dtype)
        dist.all_gather_into_tensor(joined, parts[self.rank], group=self.group)
        self.equal(joined, torch.cat(parts), "large all_gather_into_tensor", dtype)
        length = parts[0].numel() // self.size
        output = torch.empty(length, dtype=dtype)
        dist.reduce_scatter_tensor(output, parts[self.rank][: length * self.size], group=self.group)
        self.equal(output, expected[self.rank * length :][:length], "large reduce_scatter_tensor", dtype)

    def float16_rounding(self) -> None:
        """The same rounding as torch, also of subnormal numbers that this thread replaces by zero."""
        parts = []
        for rank in range(2):
            torch.manual_seed(rank)
            values = torch.randn(100_003) * torch.pow(10.0, torch.randint(-8, 4, (100_003,)))
            values[torch.rand(100_003) < 0.01] = float("inf")
            parts.append(values.half())
        tensor = parts[self.rank].clone() if self.rank < 2 else torch.zeros_like(parts[0])
        expected = parts[0] + parts[1]
        torch.set_flush_denormal(True)
        dist.all_reduce(tensor, group=self.group)
        torch.set_flush_denormal(False)
        self.equal(tensor, expected, "all_reduce", "rounding of float16")

    def bfloat16_rounding(self) -> None:
        """The same rounding as torch, for any length and value. Two ranks contribute, so the order is fixed."""
        for length in (1, 15, 16, 17, 31, 33, 100_003):
            parts = []
            for rank in range(2):
                torch.manual_seed(length + rank)
                values = torch.randn(2 * length) * torch.pow(10.0, torch.randint(-15, 15, (2 * length,)))
                values[torch.rand(2 * length) < 0.01] = float("inf")
                parts.append(values.bfloat16())
            for op, one in ((dist.ReduceOp.SUM, 0.0), (dist.ReduceOp.PRODUCT, 1.0)):
                mine = parts[self.rank] if self.rank < 2 else torch.full_like(parts[0], one)
                expected = parts[0] + parts[1] if op == dist.ReduceOp.SUM else parts[0] * parts[1]
                tensor = mine.clone()
                dist.all_reduce(tensor, op, group=self.group)
                self.equal(tensor, expected, "all_reduce", "rounding", op, length)
                tensor = mine.clone()
                dist.reduce(tensor, 0, op, group=self.group)
                if self.rank == 0:
                    self.equal(tensor, expected, "reduce", "rounding", op, length)
                if self.size == 2:
                    part = torch.empty(length, dtype=torch.bfloat16)
                    dist.reduce_scatter_tensor(part, mine, op, group=self.group)
                    wanted = expected[self.rank * length :][:length]
                    self.equal(part, wanted, "reduce_scatter", "rounding", op, length)

    def asynchronous(self) -> None:
        tensors = [torch.full((1000,), float(self.rank + i)) for i in range(8)]
        works = [dist.all_reduce(tensor, group=self.group, async_op=True) for tensor in tensors]
        for i, work in reversed(list(enumerate(filter(None, works)))):
            values = work.get_future().then(lambda future: future.value()[0] * 2).wait()
            expected = torch.full((1000,), float(sum(rank + i for rank in range(self.size))))
            self.equal(tensors[i], expected, "asynchronous all_reduce")
            self.equal(values, expected * 2, "future")

    def run(self) -> None:
        for dtype in TYPES:
            for shape in ((), (7,), (5, 3), (0,), (1025,)):
                self.reductions(dtype, shape)
                self.moves(dtype, shape)
            self.scattered_reductions(dtype, (6, 2))
            if dtype != torch.bool:
                self.large(dtype)
        self.uneven_reduce_scatter()
        self.uneven_moves()
        self.messages()
        if torch.__version__ >= "2.1":  # torch 2.0 does not coalesce
            self.coalesced()
        self.bfloat16_rounding()
        self.float16_rounding()
        for dtype in FLOATS:
            extremes(self, dtype)
        if hasattr(ReduceOp, "AVG"):
            inference(self)
        self.asynchronous()
        dist.barrier(group=self.group)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="ccl")
    backend = parser.parse_args().backend
    if backend == "ccl":
        importlib.import_module("oneccl_bindings_for_pytorch")  # registers the backend
    torch.set_num_threads(1)
    dist.init_process_group(backend, timeout=timedelta(seconds=60))
    check = CollectiveCheck()
    check.run()
    count = check.count
    size = dist.get_world_size()
    if size > 2:  # neighbouring pairs of ranks
        for first in range(size):
            pair = dist.new_group([first, (first + 1) % size])
            if dist.get_rank() in (first, (first + 1) % size):
                check = CollectiveCheck(pair)
                check.reductions(torch.float32, (5, 3))
                count += check.count
    dist.barrier()
    if dist.get_rank() == 0:
        print(f"{backend}: {count} results of {size} ranks are right", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
