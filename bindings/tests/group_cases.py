"""Cases of using and leaving groups. Each runs on two ranks, and raises if it fails."""

from __future__ import annotations

import os
import signal
import sys
import time
import weakref
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from cases import RELEASE, backend_of, check, error_of, new_group, set_key, wait_for_key
from torch.utils.data import DataLoader, TensorDataset

MESSAGES = 3000  # more than libfabric's queue between two ranks


def forked() -> None:
    """A forked child neither waits for nor disturbs the group of its parent."""
    work = None
    if dist.get_rank() == 0:
        work = dist.irecv(torch.ones(1), 1)
    pid = os.fork()
    if pid == 0:
        if work is not None:
            check("forked child" in error_of(work.wait), "wait() in the child did not raise the reason")
            check(not work.is_completed(), "the call is complete in the child")
        error = error_of(lambda: dist.ProcessGroupCCL(dist.HashStore(), 0, 1))
        check("cannot be created in a forked child" in error, f"a new group in the child raised {error!r}")
        backend_of().shutdown()
        backend_of().abort()
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


def code_of_child(end: Callable[[], object]) -> int | str:
    """The exit code of a forked child that calls `end`."""
    pid = os.fork()
    if pid == 0:
        end()
    for _ in range(200):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "hung"


def forked_children() -> None:
    """Children of a DataLoader, and children that end in several ways, leave the groups of their parent alone."""
    rank, part = dist.get_rank(), dist.new_group([0, 1])

    def use() -> None:
        error = error_of(lambda: dist.all_reduce(torch.ones(1)))
        os._exit(6 if "forked" in error else 1)

    def leave() -> None:
        dist.destroy_process_group()
        os._exit(7)

    for _ in range(2):
        for (batch,) in DataLoader(TensorDataset(torch.arange(64.0)), batch_size=16, num_workers=2):
            total = batch.sum()
            dist.all_reduce(total)
            check(total.item() == 2 * batch.sum().item(), f"the sum is {total}")
    codes = []
    for end in (lambda: os._exit(3), lambda: sys.exit(4), use, leave):
        codes.append(code_of_child(end))
        for group in (None, part):
            numbers = torch.full((100_000,), rank + 1.0)
            dist.all_reduce(numbers, group=group)
            check(numbers.sum().item() == 300_000, "the sum is wrong")
    check(codes == [3, 4, 6, 7], f"the children ended with {codes}")


def different_orders() -> None:
    """Each rank's error names the calls of both."""
    group = new_group(seconds=5)

    def call() -> None:
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(1000), group=group)
        else:
            dist.broadcast(torch.ones(5), 0, group=group)
            dist.barrier(group=group)

    error = error_of(call)
    for text in (
        "rank 0 called #1 all_reduce(float32, 1000, SUM)",
        "rank 1 called #1 broadcast(float32, 5, root 0)",
    ):
        check(text in error, f"the call raised {error!r}")


def many_messages_before_a_sum() -> None:
    """A rank that waits for a sum through shared memory receives messages meanwhile: the sender waits for it."""
    group = new_group(seconds=30)
    if dist.get_rank() == 0:
        for work in [dist.isend(torch.ones(1), 1, group=group) for _ in range(MESSAGES)]:
            work.wait()
    dist.all_reduce(torch.ones(1000), group=group)
    if dist.get_rank() == 1:
        for _ in range(MESSAGES):
            dist.recv(torch.ones(1), 0, group=group)


def parked_receive() -> None:
    """Leaving a group does not wait for a message that never arrives."""
    group = new_group()
    if dist.get_rank() == 1:
        dist.send(torch.ones(1), 0, group=group)
    else:
        dist.irecv(torch.ones(1), group=group).wait()  # from any source
        dist.irecv(torch.ones(1), 1, group=group, tag=5)
    dist.barrier()
    begin = time.monotonic()
    dist.destroy_process_group(group)
    del group
    took = time.monotonic() - begin
    check(took < 10, f"leaving the group took {took:.1f} s")
    dist.barrier()


def interface() -> None:
    """Functions that torch's own backends have too."""
    group = new_group(seconds=50)
    timeout = backend_of(group).options._timeout
    check(timeout == timedelta(seconds=50), f"the timeout is {timeout}")
    if hasattr(dist.distributed_c10d, "_set_pg_timeout"):  # since torch 2.4
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1), group)
    else:
        backend_of(group).set_timeout(timedelta(seconds=1))
    timeout = backend_of(group).options._timeout
    check(timeout == timedelta(seconds=1), f"the timeout after set_timeout is {timeout}")
    group.monitored_barrier(timedelta(seconds=20))
    begin = time.monotonic()
    if dist.get_rank() == 0:
        error = error_of(lambda: group.monitored_barrier(timedelta(seconds=1)))
        check("rank 1 did not arrive within 1 s" in error, f"monitored_barrier raised {error!r}")
        error = error_of(lambda: dist.all_reduce(torch.ones(7), group=group))
        late = "all_reduce(float32, 7, SUM) did not complete within its timeout of 1 s"
        check(late in error and "group 1, rank 0 of 2" in error, f"all_reduce raised {error!r}")
        check(time.monotonic() - begin < 15, "the new timeout is not used")
        set_key("done")
    wait_for_key("done")
    dist.barrier()  # the store ends with rank 0
    if hasattr(dist, "_make_nccl_premul_sum"):  # since torch 1.13
        premultiplied()


def premultiplied() -> None:
    """PREMUL_SUM with a number and with a tensor as the factor."""
    tensor = torch.full((6,), 2.0)
    dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(0.25))
    check(tensor.tolist() == [1.0] * 6, f"PREMUL_SUM returned {tensor}")
    output, inputs, factor = torch.empty(3), torch.full((6,), 2.0), torch.tensor([0.25])
    op = dist._make_nccl_premul_sum(factor if RELEASE >= (2, 0) else [factor])
    dist.reduce_scatter_tensor(output, inputs, op=op)
    check(output.tolist() == [1.0] * 3, f"PREMUL_SUM returned {output}")
    check(inputs.tolist() == [2.0] * 6, f"PREMUL_SUM changed its input to {inputs}")


def different_tensors() -> None:
    """Tensors of different sizes or types raise an error, at once on at least one rank."""
    expected = ("another rank calls a different collective", "the ranks call different collectives")
    group = new_group(seconds=50)
    size = 5 + dist.get_rank()
    error = error_of(lambda: dist.all_reduce(torch.ones(size), group=group))
    check(any(text in error for text in expected), f"all_reduce raised {error!r}")
    group = new_group(seconds=50)
    own = torch.ones(4, dtype=(torch.float32, torch.int32)[dist.get_rank()])
    error = error_of(lambda: dist.all_gather([torch.empty_like(own) for _ in range(2)], own, group=group))
    check(any(text in error for text in expected), f"all_gather raised {error!r}")


def mismatch_at_the_start() -> None:
    """The tensor of a call that could not start is released after the last group has ended."""
    store = dist.PrefixStore("again", dist.distributed_c10d._get_default_store())
    rank, size = dist.get_rank(), dist.get_world_size()
    time.sleep(0.5 * rank)  # rank 1 finds what rank 0 has called
    tensors = [torch.ones(5 + rank)]
    error = error_of(lambda: dist.all_reduce(tensors[0]))
    check(rank == 0 or "could not start" in error, f"all_reduce raised {error!r}")
    left = weakref.ref(tensors.pop())
    dist.destroy_process_group()
    deadline = time.monotonic() + 10
    while left() is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    dist.init_process_group("ccl", store=store, rank=rank, world_size=size)
    check(left() is None, "the tensor was not released")
    dist.barrier()


def left_in_order() -> None:
    """A collective that a rank took part in before leaving completes. A later collective raises."""
    group = new_group(seconds=60)
    dist.all_reduce(torch.ones(1), group=group)
    if dist.get_rank() == 1:
        dist.destroy_process_group(group)
        wait_for_key("noticed")
    else:
        time.sleep(0.5)
        begin = time.monotonic()
        error = error_of(lambda: dist.all_reduce(torch.ones(1), group=group))
        took = time.monotonic() - begin
        check(
            "rank 1 has left the group" in error and took < 10, f"after {took:.1f} s, all_reduce raised {error!r}"
        )
        set_key("noticed")
    dist.barrier()  # the store ends with rank 0


def ended_rank() -> None:
    """A rank's process ends. Messages, calls of callbacks and calls that it left incomplete raise in time."""
    messages, callbacks, calls = (new_group(seconds=60) for _ in range(3))

    def call_in_callback() -> torch.futures.Future[object]:
        work = dist.all_reduce(torch.ones(1), group=callbacks, async_op=True)
        return work.get_future().then(lambda _: dist.all_reduce(torch.ones(1), group=callbacks))

    call_in_callback().wait()
    if dist.get_rank() == 1:
        dist.all_reduce(torch.ones(1), group=callbacks)
        dist.all_reduce(torch.ones(10_000_000), group=calls, async_op=True)
        raise SystemExit
    in_callback = call_in_callback()
    time.sleep(1)
    for name, call in (
        ("a receive", lambda: dist.recv(torch.ones(1), 1, group=messages)),
        ("a call of a callback", in_callback.wait),
        ("a call that rank 1 did not complete", lambda: dist.all_reduce(torch.ones(10_000_000), group=calls)),
    ):
        begin = time.monotonic()
        error = error_of(call)
        took = time.monotonic() - begin
        check("rank 1 has left the group" in error and took < 10, f"after {took:.1f} s, {name} raised {error!r}")
    check(not backend_of(messages).has_error(), "the receive broke the group")
