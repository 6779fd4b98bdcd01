"""One rank of two in a case that is not everyday's. Prints "CASE: right" on rank 0, or raises.

torchrun --nproc-per-node 2 edges.py CASE
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import oneccl_bindings_for_pytorch  # noqa: F401  registers the backend
import torch
import torch.distributed as dist

HOLD_SECONDS = 6


def check(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(f"rank {dist.get_rank()}: {what}")


def group(seconds: float = 60) -> dist.ProcessGroup:
    return dist.new_group(backend="ccl", timeout=timedelta(seconds=seconds))


def backend(of: dist.ProcessGroup | None = None) -> Any:
    return (of or dist.distributed_c10d._get_default_group())._get_backend(torch.device("cpu"))


def error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return ""


def say(key: str) -> None:
    dist.distributed_c10d._get_default_store().set(key, "")


def hear(key: str) -> None:
    dist.distributed_c10d._get_default_store().wait([key], timedelta(seconds=60))


def sum_again(done: Any) -> torch.Tensor:
    """Inside of a callback: waits for another collective."""
    work = dist.all_reduce(done.value()[0].clone(), async_op=True)
    result: torch.Tensor = work.get_future().wait()[0]
    return result


def callback_waits() -> None:
    """A callback that waits for the future of a call that was started later."""
    first, second = (dist.all_reduce(torch.ones(size), async_op=True).get_future() for size in (10, 200_000))
    nested = first.then(lambda _: second.wait()[0].sum().item())
    check(nested.wait() == 400_000, "the callback saw the other call's result")
    chained = first.then(
        lambda _: dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()[0].sum().item()
    )
    check(chained.wait() == 6, "the callback's own call is complete")


def callbacks_in_order() -> None:
    """Callbacks that call two collectives each, beside calls of the main thread: one order on every rank."""

    def twice(done: Any) -> torch.Tensor:
        work = dist.all_reduce(done.value()[0].clone(), async_op=True)
        work.get_future().wait()
        return sum_again(work.get_future())

    hold = ctypes.PyDLL(None).usleep  # holds the GIL: the callbacks of this rank are late
    sums = []
    for size in range(1, 31):
        sums.append(dist.all_reduce(torch.ones(size), async_op=True).get_future().then(twice))
        if size % 10 == 0 and dist.get_rank() == size // 10 % 2:
            hold(500_000)
        elif dist.get_rank() == size % 2:
            time.sleep(0.003)
    for size, future in enumerate(sums, start=1):
        found = future.wait()
        check(found.shape == (size,) and found.sum().item() == 8 * size, f"callback {size} gave {found}")


def callback_holds_the_gil() -> None:
    """It stops neither another group's progress nor its timeouts."""
    progress, late = group(), group(seconds=1)
    if dist.get_rank() == 0:
        big = torch.ones(5_000_000)
        hold = ctypes.PyDLL(None).sleep  # holds the GIL, unlike time.sleep
        held = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(lambda _: hold(HOLD_SECONDS))
        dist.all_reduce(torch.ones(10), group=late, async_op=True)
        work = dist.all_reduce(big, group=progress, async_op=True)
        say("started")
        held.wait()
        work.wait()
    else:
        dist.all_reduce(torch.ones(1))
        hear("started")
        begin = time.monotonic()
        dist.all_reduce(torch.ones(5_000_000), group=progress)
        took = time.monotonic() - begin
        check(took < HOLD_SECONDS / 2, f"another group's call took {took:.1f} s")
        while not backend(late).has_error():
            check(time.monotonic() - begin < HOLD_SECONDS - 1, "the timeout was not noticed")
            time.sleep(0.05)
    dist.barrier()


def future_after_wait() -> None:
    """wait() returns when the future is complete."""
    for _ in range(2000):
        work = dist.all_reduce(torch.ones(1), async_op=True)
        future = work.get_future()
        work.wait()
        check(future.done(), "the future is not complete after wait()")


def failed_creation() -> None:
    """A group cannot be made while a call is in flight: an error, and that call ends at its own timeout."""
    package = sys.modules["oneccl_bindings_for_pytorch"]
    inner = package.create  # type: ignore[attr-defined]

    class Dying(dist.Store):  # type: ignore[misc]
        def __init__(self, store: dist.Store) -> None:
            super().__init__()
            self.store = store

        def set(self, key: str, value: str) -> None:
            if "lifeline" not in key and "join" not in key:  # oneCCL's own
                os._exit(9)
            self.store.set(key, value)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.store, name)

        def clone(self) -> dist.Store:
            return self

        def get(self, key: str) -> bytes:
            return bytes(self.store.get(key))

        def check(self, keys: list[str]) -> bool:
            return bool(self.store.check(keys))

        def wait(self, keys: list[str], *timeout: timedelta) -> None:
            self.store.wait(keys, *timeout)

        def add(self, key: str, value: int) -> int:
            return int(self.store.add(key, value))

    if dist.get_rank() == 1:
        package.create = lambda store, **options: inner(store=Dying(store), **options)  # type: ignore[attr-defined]
        group(seconds=5)
    # In flight for ever: a message that nobody sends.
    work = dist.irecv(torch.ones(1), 1)
    said = error_of(lambda: group(seconds=5))
    check("could not connect" in said, f"the failed group says {said!r}")
    said = error_of(lambda: work.wait())
    check("rank 1 has ended" in said, f"the call in flight says {said!r}")
    print("failed_creation: right", flush=True)
    os._exit(0)


def forked() -> None:
    """In a child nothing of the parent's group waits, and nothing is disturbed."""
    work = None
    if dist.get_rank() == 0:
        work = dist.irecv(torch.ones(1), 1)
    pid = os.fork()
    if pid == 0:
        if work is not None:
            check("forked child" in error_of(work.wait), "a wait in the child does not say why it ends")
            check(not work.is_completed(), "complete in the child")
        backend().shutdown()
        backend().abort()
        del work
        dist.destroy_process_group()
        os._exit(7)
    _, status = os.waitpid(pid, 0)
    check(os.waitstatus_to_exitcode(status) == 7, f"the child ended with status {status}")
    dist.barrier()
    if work is None:
        dist.send(torch.ones(1), 0)
    else:
        work.wait()
    dist.barrier()


def parked_receive() -> None:
    """Leaving a group does not wait for a message that never comes."""
    one = group()
    work = dist.irecv(torch.ones(1), group=one) if dist.get_rank() == 0 else None  # from any source
    if dist.get_rank() == 1:
        dist.send(torch.ones(1), 0, group=one)
    else:
        check(work is not None, "no receive")
        work.wait()  # type: ignore[union-attr]
        dist.irecv(torch.ones(1), 1, group=one, tag=5)
    dist.barrier()
    begin = time.monotonic()
    dist.destroy_process_group(one)
    del one
    took = time.monotonic() - begin
    check(took < 10, f"leaving took {took:.1f} s")
    dist.barrier()


def same_store() -> None:
    """A group that is made again over the same store."""
    store = dist.PrefixStore("again", dist.distributed_c10d._get_default_store())
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    for number in range(3):
        dist.init_process_group("ccl", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=30))
        one = torch.ones(number + 1)
        dist.all_reduce(one)
        check(one.sum().item() == 2 * (number + 1), "the sum is wrong")
        if number < 2:
            dist.destroy_process_group()


def interface() -> None:
    """What torch's other backends have too."""
    one = group(seconds=50)
    check(backend(one).options._timeout == timedelta(seconds=50), "options")
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1), one)
    check(backend(one).options._timeout == timedelta(seconds=1), "set_timeout")
    one.monitored_barrier(timedelta(seconds=20))
    begin = time.monotonic()
    if dist.get_rank() == 0:
        said = error_of(lambda: one.monitored_barrier(timedelta(seconds=1)))
        check("rank 1 did not arrive within 1 s" in said, f"monitored_barrier says {said!r}")
        said = error_of(lambda: dist.all_reduce(torch.ones(7), group=one))
        check("did not complete within its timeout of 1 s" in said, f"the call says {said!r}")
        check(time.monotonic() - begin < 15, "the new timeout is not used")
        say("done")
    hear("done")
    factor = 0.25
    number = torch.full((6,), 2.0)
    dist.all_reduce(number, op=dist._make_nccl_premul_sum(factor))
    check(number.tolist() == [1.0] * 6, f"PREMUL_SUM gives {number}")
    output = torch.empty(3)
    whole = torch.full((6,), 2.0)
    dist.reduce_scatter_tensor(output, whole, op=dist._make_nccl_premul_sum(torch.tensor([factor])))
    check(output.tolist() == [1.0] * 3 and whole.tolist() == [2.0] * 6, f"PREMUL_SUM gives {output}, {whole}")


def left_in_order() -> None:
    """A rank that left is no failure for a call that it took part in, and one for calls after that."""
    one = group(seconds=60)
    dist.all_reduce(torch.ones(1), group=one)
    if dist.get_rank() == 1:
        dist.destroy_process_group(one)
        hear("noticed")
        return
    time.sleep(0.5)
    begin = time.monotonic()
    said = error_of(lambda: dist.all_reduce(torch.ones(1), group=one))
    took = time.monotonic() - begin
    check("rank 1 has left the group" in said and took < 10, f"after {took:.1f} s: {said!r}")
    say("noticed")


CASES = {
    case.__name__: case
    for case in (
        callback_waits,
        callbacks_in_order,
        callback_holds_the_gil,
        future_after_wait,
        failed_creation,
        forked,
        parked_receive,
        same_store,
        interface,
        left_in_order,
    )
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=CASES)
    case = parser.parse_args().case
    torch.set_num_threads(1)
    if not dist.is_initialized():
        dist.init_process_group("cpu:ccl", timeout=timedelta(seconds=60))
    CASES[case]()
    if dist.get_rank() == 0:
        print(f"{case}: right", flush=True)
    with contextlib.suppress(RuntimeError):
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
