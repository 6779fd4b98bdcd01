"""Cases of callbacks of futures. Each runs on two ranks, and raises if it fails."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any

import torch
import torch.distributed as dist
from cases import Wrapped, backend_of, check, error_of, new_group, set_key, wait_for_key, wrap_stores

HOLD_SECONDS = 6
numbers = itertools.count()


def sum_again(done: Any) -> torch.Tensor:
    """A callback that waits for another collective."""
    work = dist.all_reduce(done.value()[0].clone(), async_op=True)
    result: torch.Tensor = work.get_future().wait()[0]
    return result


def callback_waits() -> None:
    """A callback waits for the future of a later call."""
    first, second = (dist.all_reduce(torch.ones(size), async_op=True).get_future() for size in (10, 200_000))
    nested = first.then(lambda _: second.wait()[0].sum().item())
    check(nested.wait() == 400_000, "the callback did not get the result of the later call")
    chained = first.then(
        lambda _: dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()[0].sum().item()
    )
    check(chained.wait() == 6, "the callback did not get the result of its own call")


def hold_callbacks() -> Callable[[], None]:
    """Hold the callbacks of the default group. Returns the function that releases them."""
    released = Event()
    for rank in range(2):
        key = f"held {rank} {next(numbers)}"
        if dist.get_rank() == rank:  # attached before the other rank makes the call
            dist.all_reduce(torch.ones(1), async_op=True).get_future().then(lambda _: released.wait())
            set_key(key)
        else:
            wait_for_key(key)
            dist.all_reduce(torch.ones(1))
    return released.set


def callback_takes_time() -> None:
    """A callback that takes long on one rank keeps its turn: the callbacks' collectives meet in one order."""

    def take(number: int, done: Any) -> float:
        time.sleep(0.4 * (number % 2 == dist.get_rank()))
        again: float = sum_again(done).sum().item()
        return again

    release = hold_callbacks()
    works = [dist.all_reduce(torch.full((4,), float(number)), async_op=True) for number in range(4)]
    sums = [work.get_future().then(functools.partial(take, number)) for number, work in enumerate(works)]
    release()
    found = [future.wait() for future in sums]
    check(found == [0, 16, 32, 48], f"the callbacks returned {found}")


def give_way(wait: str) -> None:
    """The first of four callbacks waits for the third call."""
    release = hold_callbacks()
    works = [dist.all_reduce(torch.full((4,), float(number)), async_op=True) for number in range(4)]
    futures = [work.get_future() for work in works]
    children: list[Any] = []
    order = []

    def take(number: int, done: Any) -> float:
        time.sleep(0.05 * (number % 2 == dist.get_rank()))
        if number == 0:
            if wait == "work":
                works[2].wait()
            elif wait == "all":
                torch.futures.wait_all([futures[1], futures[2]])
            else:
                (futures[2] if wait == "future" else children[2]).wait()
        order.append(number)
        again: float = sum_again(done).sum().item()
        return again

    children += [future.then(functools.partial(take, number)) for number, future in enumerate(futures)]
    release()
    found = [child.wait() for child in children]
    check(found == [0, 16, 32, 48], f"{wait}: the callbacks returned {found}")
    check(order == [1, 2, 0, 3], f"{wait}: the order was {order}")


def callbacks_give_way_in_order() -> None:
    """A callback that waits for a later call resumes after that call's callbacks, on every rank."""
    for wait in ("work", "future", "child", "all"):
        give_way(wait)


def message_futures() -> None:
    """The future of a message leaves those of collectives with the same number alone."""
    other = 1 - dist.get_rank()
    release = hold_callbacks()
    works = [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(4)]
    futures = [work.get_future() for work in works]
    messages = [call(torch.ones(1), other) for _ in range(20) for call in (dist.isend, dist.irecv)]
    for message in messages:
        message.get_future()
        message.wait()
    release()
    for number, work in enumerate(works):
        work.wait(timedelta(seconds=10))
        check(futures[number].done(), f"the future of collective {number} is not complete")


def callbacks_in_order() -> None:
    """Callbacks that call two collectives each run in one order on every rank, beside calls of the main thread."""

    def sum_twice(done: Any) -> torch.Tensor:
        work = dist.all_reduce(done.value()[0].clone(), async_op=True)
        work.get_future().wait()
        return sum_again(work.get_future())

    hold = ctypes.PyDLL(None).usleep  # holds the GIL, which delays the callbacks of this rank
    sums = []
    for size in range(1, 31):
        sums.append(dist.all_reduce(torch.ones(size), async_op=True).get_future().then(sum_twice))
        if size % 10 == 0 and dist.get_rank() == size // 10 % 2:
            hold(500_000)
        elif dist.get_rank() == size % 2:
            time.sleep(0.003)
    for size, future in enumerate(sums, start=1):
        found = future.wait()
        check(found.shape == (size,) and found.sum().item() == 8 * size, f"callback {size} returned {found}")


def callbacks_attached_late() -> None:
    """Callbacks that one rank attaches before and one after the future is complete call the same collective."""
    for attach in ("then", "add_done_callback"):
        for late in range(2):
            is_late = dist.get_rank() == late
            time.sleep(0.05 * is_late)  # the other rank's future cannot be complete before
            future = dist.all_reduce(torch.ones(2), async_op=True).get_future()
            while is_late and not future.done():
                time.sleep(0.001)
            sums: list[torch.Tensor] = []
            getattr(future, attach)(lambda done, sums=sums: sums.append(sum_again(done)))
            values = torch.ones(5)
            dist.all_reduce(values)
            check(values.sum().item() == 10, f"{attach}: the main thread got {values}")
            while not sums:
                time.sleep(0.001)
            check(sums[0].tolist() == [4, 4], f"{attach}: the callback got {sums[0]}")


class Slow(Wrapped):
    """A store that delays one group of each rank when its second lane is about to connect."""

    groups = 0

    def __init__(self, _: dist.Store) -> None:
        # Its own connection, because one lane of each group uses it at the same time.
        connection = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
        super().__init__(dist.PrefixStore(f"slow/{Slow.groups}", connection))
        self.is_slow = Slow.groups == dist.get_rank()
        Slow.groups += 1

    def check(self, keys: list[str]) -> bool:
        if self.is_slow and any("lane/1/shared/missing" in key for key in keys):
            time.sleep(2)
        return super().check(keys)


def lanes_of_two_groups() -> None:
    """The first callbacks of two groups call collectives at the same time, in a different order on each rank."""
    wrap_stores(Slow)
    sums: list[torch.Tensor] = []

    def use(group: dist.ProcessGroup) -> None:
        def sum_in_group(done: Any) -> None:
            tensor = done.value()[0].clone()
            dist.all_reduce(tensor, group=group)
            sums.append(tensor)

        dist.all_reduce(torch.ones(3), group=group, async_op=True).get_future().then(sum_in_group).wait()

    threads = [Thread(target=use, args=(group,)) for group in (new_group(seconds=20), new_group(seconds=20))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check([found.tolist() for found in sums] == [[4] * 3] * 2, f"the callbacks got {sums}")


def callback_holds_the_gil() -> None:
    """A callback that holds the GIL delays neither the calls nor the timeouts of other groups."""
    progress, late = new_group(), new_group(seconds=1)
    if dist.get_rank() == 0:
        big = torch.ones(5_000_000)
        hold = ctypes.PyDLL(None).sleep  # holds the GIL, unlike time.sleep
        held = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(lambda _: hold(HOLD_SECONDS))
        dist.all_reduce(torch.ones(10), group=late, async_op=True)
        work = dist.all_reduce(big, group=progress, async_op=True)
        set_key("started")
        held.wait()
        work.wait()
    else:
        wait_for_key("started")
        dist.all_reduce(torch.ones(1))  # not before: the callback has to run in another thread
        begin = time.monotonic()
        dist.all_reduce(torch.ones(5_000_000), group=progress)
        took = time.monotonic() - begin
        check(took < HOLD_SECONDS / 2, f"the call of another group took {took:.1f} s")
        while not backend_of(late).has_error():
            check(time.monotonic() - begin < HOLD_SECONDS - 1, "the timeout was not noticed")
            time.sleep(0.05)
    dist.barrier()


def future_after_wait() -> None:
    """When wait() returns, the future is complete."""
    for number in range(2000):
        work = dist.all_reduce(torch.ones(1), async_op=True)
        future = work.get_future()
        while number % 2 and not work.is_success():  # completed by another thread, unlike in wait()
            pass
        work.wait()
        check(future.done(), "the future is not complete after wait()")


def limited_wait() -> None:
    """wait(timeout) raises if the future is not complete in time, since an earlier callback still runs."""
    if dist.get_rank() == 0:
        first = dist.all_reduce(torch.ones(1), async_op=True)
        slow = first.get_future().then(lambda _: time.sleep(2))
        set_key("attached")
        work = dist.all_reduce(torch.ones(1), async_op=True)
        future = work.get_future()
        error = error_of(lambda: work.wait(timedelta(milliseconds=200)))
        check("0.2 s timeout of wait()" in error and not future.done(), f"wrong error: {error!r}")
        slow.wait()
        work.wait()
    else:
        wait_for_key("attached")  # a complete future would run the callback in its main thread
        for _ in range(2):
            dist.all_reduce(torch.ones(1))
    dist.barrier()


def openmp_workers() -> int:
    """Of this process. Not all threads: torch 1.13 replaces those of another pool when a new thread computes."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            names.append((task / "comm").read_text().strip())
    return names.count("openmp_worker")


def one_openmp_team() -> None:
    """Sums, averages, copies and callbacks in the background start no second team of OpenMP threads."""
    size = 8
    torch.set_num_threads(size)
    torch.ones(5_000_000).mul_(2)  # starts the team of this thread
    dist.all_reduce(torch.ones(1), async_op=True).get_future().wait()
    before = openmp_workers()
    check(before == size - 1, f"{before} workers of OpenMP, expected {size - 1}")
    op = getattr(dist.ReduceOp, "AVG", dist.ReduceOp.MAX)  # torch 1.10 has no averages
    average = dist.all_reduce(torch.ones(5_000_000), op=op, async_op=True).get_future()
    lists = [torch.ones(5_000_000) for _ in range(dist.get_world_size())]
    gathered = dist.all_gather(lists, torch.ones(5_000_000), async_op=True).get_future()
    doubled = average.then(lambda done: done.value()[0].mul_(2).sum().item())
    while not (doubled.done() and gathered.done()):  # not wait(), which finishes the call in this thread
        time.sleep(0.01)
    check(doubled.value() == 10_000_000, f"the sum is {doubled.value()}")
    more = openmp_workers() - before
    check(more == 0, f"{more} more workers of OpenMP")
