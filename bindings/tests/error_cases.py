"""One rank of two that runs a case of a transfer or a thread that fails. Raises if the case fails.

torchrun --nproc-per-node 2 error_cases.py CASE
"""

from __future__ import annotations

import ctypes
import resource
import threading
import time

import torch
import torch.distributed as dist
from cases import Wrapped, backend_of, check, error_of, new_group, run, wrap_stores

LONGEST = 20.0  # seconds from an error to the end of all calls, on a busy machine; the groups' timeout is 60 s
PR_SET_DUMPABLE = 4


def tensor_of_rank() -> torch.Tensor:
    """Of another size on each rank: the user's error."""
    return torch.ones((10, 4)[dist.get_rank()])


def send_too_much(group: dist.ProcessGroup) -> dist.Work | None:
    """A message of 10 numbers from rank 0, for which rank 1 has room for 4. Only oneCCL sees it."""
    if dist.get_rank() == 0:
        dist.send(torch.ones(10), 1, group)
        return None
    return dist.irecv(torch.ones(4), 0, group)


def largest(group: dist.ProcessGroup, **options: bool) -> dist.Work:
    """A call that needs oneCCL also within a node."""
    return dist.all_reduce(torch.full((1000,), float(dist.get_rank())), dist.ReduceOp.MAX, group, **options)


def check_broken(group: dist.ProcessGroup) -> None:
    """Every rank learns of the failure in time, and later calls raise."""
    end = time.monotonic() + LONGEST
    while not backend_of(group).has_error():
        check(time.monotonic() < end, "the group does not know that it has failed")
        time.sleep(0.05)
    error = error_of(lambda: largest(group))
    check(error.startswith("ccl: "), f"a call on the group that failed raised {error!r}")


def sizes_in_a_wait() -> None:
    """oneCCL's error reaches the thread that waits."""
    group = new_group()
    begin = time.monotonic()
    receive = send_too_much(group)
    if receive is not None:  # rank 0 has sent its tensor, and returns
        error = error_of(receive.wait)
        took = time.monotonic() - begin
        check(took < LONGEST, f"the call took {took:.1f} s")
        check("recv(float32, 4" in error and "differ in size" in error, f"the call raised {error!r}")
    check_broken(group)


def sizes_in_the_background() -> None:
    """oneCCL's error reaches the thread of the engine, while no thread waits. Later futures complete too."""
    group, other = new_group(), new_group()
    ended = threading.Event()
    receive = send_too_much(group)
    if receive is not None:
        receive.get_future().add_done_callback(lambda _: ended.set())
        check(ended.wait(LONGEST), "the future is not complete")
        error = error_of(receive.wait)
        check("differ in size" in error, f"the call raised {error!r}")
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
    failing = dist.broadcast(tensor_of_rank(), 0, wrong, async_op=True)
    error = error_of(in_flight.wait)
    check(error == "", f"the call that is right raised {error!r}")
    check(bool((large == 1).all()), "the call that is right has another result")
    error = error_of(failing.wait)
    check("the ranks call different collectives" in error, f"the call at fault raised {error!r}")
    check_broken(wrong)
    for group in (right, idle):
        error = error_of(lambda group=group: largest(group))
        check(error == "" and not backend_of(group).has_error(), f"another group raised {error!r}")


def several_suspects() -> None:
    """Calls that cannot complete either fail with the one at fault. The text lists all calls."""
    waiting, wrong, idle = new_group(), new_group(), new_group()
    receive = dist.irecv(torch.ones(3), 0, group=waiting) if dist.get_rank() == 1 else None
    too_small = send_too_much(wrong)
    if receive is not None and too_small is not None:
        errors = [error_of(receive.wait), error_of(too_small.wait)]
        for error in errors:
            check(all(f"recv(float32, {size}" in error for size in (3, 4)), f"a call raised {error!r}")
        check(errors[0].startswith("ccl: #1 recv(float32, 3"), f"the receive raised {errors[0]!r}")
    for group in (waiting, wrong):
        check_broken(group)
    error = error_of(lambda: largest(idle))
    check(error == "", f"a group without transfers in flight raised {error!r}")


def late_error() -> None:
    """A call that fails after another one, because of an error of oneCCL, names that one: it may be at fault."""
    waiting, wrong = new_group(), new_group()
    receive = dist.irecv(torch.ones(3), 0, group=waiting) if dist.get_rank() == 1 else None
    broadcast = dist.broadcast(tensor_of_rank(), 0, wrong, async_op=True)
    error = error_of(broadcast.wait)
    check("the ranks call different collectives" in error, f"the call at fault raised {error!r}")
    if receive is not None:
        error = error_of(receive.wait)
        is_named = "broadcast(float32, 4, root 0) of group" in error and "failed before" in error
        check(error.startswith("ccl: #1 recv") and is_named, f"the receive raised {error!r}")
    for group in (waiting, wrong):
        check_broken(group)


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

    class Watching(Wrapped):
        def set(self, key: str, value: bytes) -> None:
            if "lifeline/address" in key:
                addresses.append(bytes(value).decode())
            super().set(key, value)

    wrap_stores(Watching)
    new_group()
    (address,) = addresses
    check(not address.startswith("127."), f"the rank listens on {address.split()[0]}")


if __name__ == "__main__":
    run(
        average_of_unsigned,
        group_at_fault,
        late_error,
        no_more_threads,
        not_shared,
        own_name_is_loopback,
        several_suspects,
        sizes_in_a_wait,
        sizes_in_the_background,
    )
