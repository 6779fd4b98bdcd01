"""Cases of a transfer or a thread that fails. Each runs on two ranks, and raises if it fails."""

from __future__ import annotations

import ctypes
import os
import resource
import threading
import time

import torch
import torch.distributed as dist
from cases import Wrapped, backend_of, check, error_of, new_group, wrap_stores

LONGEST = 20.0  # seconds from an error to the end of all calls, on a busy machine; the groups' timeout is 60 s
PR_SET_DUMPABLE = 4


def tensor_of_rank() -> torch.Tensor:
    """Of another size on each rank: the user's error."""
    return torch.ones((10, 4)[dist.get_rank()])


class Deaf(Wrapped):
    """Without addresses of ranks, so without lifelines, over which the ranks would compare their calls first."""

    def set(self, key: str, value: bytes) -> None:
        super().set(key, b"" if "lifeline/address" in key else value)


def scatter_too_much(group: dist.ProcessGroup) -> dist.Work:
    """Rank 1 has room for 4 of the 10 numbers that rank 0 sends. Without shared memory, only oneCCL sees it."""
    whole = [torch.ones(10), torch.ones(10)] if dist.get_rank() == 0 else None
    work: dist.Work = dist.scatter(tensor_of_rank(), whole, 0, group, async_op=True)
    return work


def check_scatter(error: str) -> None:
    if dist.get_rank() == 0:  # it has sent its tensors
        check(error == "", f"the call raised {error!r}")
    else:
        is_right = error.startswith("ccl: #1 scatter(float32, 4, root 0)") and "differ in size" in error
        check(is_right, f"the call raised {error!r}")


def largest(group: dist.ProcessGroup, **options: bool) -> dist.Work:
    """A call that needs oneCCL also within a node."""
    return dist.all_reduce(torch.full((1000,), float(dist.get_rank())), dist.ReduceOp.MAX, group, **options)


def check_broken(group: dist.ProcessGroup) -> None:
    """Every rank learns of the failure in time, and later calls raise."""
    begin = time.monotonic()
    error = error_of(lambda: largest(group))
    check(error.startswith("ccl: "), f"a call on the group that failed raised {error!r}")
    check(backend_of(group).has_error(), "the group does not know that it has failed")
    took = time.monotonic() - begin
    check(took < LONGEST, f"the call took {took:.1f} s")


def error_in_a_wait() -> None:
    """oneCCL's error reaches the thread that waits."""
    wrap_stores(Deaf)
    group = new_group()
    begin = time.monotonic()
    check_scatter(error_of(scatter_too_much(group).wait))
    took = time.monotonic() - begin
    check(took < LONGEST, f"the call took {took:.1f} s")
    check_broken(group)


def error_in_the_background() -> None:
    """oneCCL's error reaches the thread of the engine, while no thread waits. Later futures complete too."""
    wrap_stores(Deaf)
    group, other = new_group(), new_group()
    ended = threading.Event()
    scatter = scatter_too_much(group)
    scatter.get_future().add_done_callback(lambda _: ended.set())
    check(ended.wait(LONGEST), "the future is not complete")
    check_scatter(error_of(scatter.wait))
    check_broken(group)
    ended.clear()
    later = dist.all_reduce(torch.ones(200_000), group=other, async_op=True)
    later.get_future().add_done_callback(lambda _: ended.set())
    check(ended.wait(LONGEST), "a later future is not complete")
    check(error_of(later.wait) == "", "a group without a failure failed")


def group_at_fault() -> None:
    """A group whose calls are right goes on, in flight or not."""
    wrong, right, idle = new_group(), new_group(), new_group()
    large = torch.full((2_000_000,), float(dist.get_rank()))
    in_flight = dist.all_reduce(large, dist.ReduceOp.MAX, right, async_op=True)
    wrong_error = error_of(lambda: dist.broadcast(tensor_of_rank(), 0, wrong))
    error = error_of(in_flight.wait)
    check(error == "", f"the call that is right raised {error!r}")
    check(bool((large == 1).all()), "the call that is right has another result")
    is_named = "the ranks call different collectives" in wrong_error
    check(
        is_named or dist.get_rank() == 0, f"the call at fault raised {wrong_error!r}"
    )  # rank 0 has sent its tensor
    check_broken(wrong)
    for group in (right, idle):
        error = error_of(lambda group=group: largest(group))
        check(error == "" and not backend_of(group).has_error(), f"another group raised {error!r}")


def several_suspects() -> None:
    """Calls that cannot complete either fail with the one at fault. The text lists all calls, and those before."""
    wrap_stores(Deaf)
    before, waiting, wrong, idle = (new_group() for _ in range(4))
    check_scatter(error_of(scatter_too_much(before).wait))
    message = dist.irecv(torch.ones(3), 0, group=waiting) if dist.get_rank() == 1 else None
    scatter = scatter_too_much(wrong)
    if message is not None:
        for work, start in ((message, "#1 recv(float32, 3"), (scatter, "#1 scatter(float32, 4, root 0)")):
            error = error_of(work.wait)
            check(error.startswith(f"ccl: {start}"), f"a call raised {error!r}")
            check(error.count("scatter(float32, 4, root 0) of group") == 2, f"a call raised {error!r}")
            check(all(text in error for text in ("recv(float32, 3", "failed before")), f"a call raised {error!r}")
    for group in (before, waiting, wrong):
        check_broken(group)
    error = error_of(lambda: largest(idle))
    check(error == "", f"a group without transfers in flight raised {error!r}")


def no_more_threads() -> None:
    """Futures complete where the system starts no thread, also those that a callback waits for."""
    group = new_group()
    dist.all_reduce(torch.ones(1), group=group)
    time.sleep(2)  # idle threads end
    before = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, before[1]))
    error = error_of(threading.Thread(target=int).start)
    check("start new thread" in error, "the limit has no effect, so the case shows nothing")
    first, second = (dist.all_reduce(torch.ones(size), group=group, async_op=True) for size in (10, 200_000))
    results = [first.get_future().then(lambda _: second.wait()), second.get_future().then(lambda _: True)]
    for result in results:
        check(result.wait() is True, "a callback has another result")
    error = error_of(lambda: new_group(seconds=30))
    check("cannot start a thread" in error or "has given the group up" in error, f"a new group raised {error!r}")
    resource.setrlimit(resource.RLIMIT_NPROC, before)
    dist.all_reduce(torch.ones(1), group=group)
    new_group()


def not_shared() -> None:
    """Ranks that may not open each other's files take another path, with one line. The test counts the lines."""
    if dist.get_rank() == 0:
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)
    for _ in range(2):
        group = new_group()
        numbers = torch.ones(1000)
        dist.all_reduce(numbers, group=group)
        check(numbers.sum().item() == 2000, "the sum is wrong")


def average_of_unsigned() -> None:
    """A type that cannot be divided is refused before the other ranks take part."""
    for name in ("uint16", "uint32", "uint64"):
        dtype = getattr(torch, name, None)
        if dist.get_rank() == 0 and dtype is not None:
            numbers = torch.ones(4, dtype=dtype)
            try:
                dist.all_reduce(numbers, dist.ReduceOp.AVG)
            except ValueError as error:
                check("AVG" in str(error), f"{name} raised {error!r}")
            else:
                check(False, f"AVG of {name} was not refused")
            check(numbers.tolist() == [1] * 4, f"the tensor of type {name} has changed")
    dist.all_reduce(torch.ones(1))


def own_name_is_loopback() -> None:
    """The address for the other ranks is not 127.0.1.1, which Debian has for the host's own name."""
    addresses = []
    del os.environ["FI_TCP_IFACE"]

    class Watching(Wrapped):
        def set(self, key: str, value: bytes) -> None:
            if "lifeline/address" in key:
                addresses.append(bytes(value).decode())
            super().set(key, value)

    wrap_stores(Watching)
    new_group()
    (address,) = addresses
    check(not address.startswith("127."), f"the rank listens on {address.split()[0]}")
