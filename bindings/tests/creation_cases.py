"""Cases of creating groups. Each runs on two ranks, and raises if it fails."""

from __future__ import annotations

import importlib
import os
import signal
import time
from datetime import timedelta
from types import SimpleNamespace

import torch
import torch.distributed as dist
from cases import RELEASE, Wrapped, backend_of, check, error_of, new_group, set_key, wait_for_key, wrap_stores


class Dying(Wrapped):
    """A store that kills the process at its first key without one of the words in `earlier`."""

    earlier: tuple[str, ...] = ()

    def set(self, key: str, value: str) -> None:
        if not any(word in key for word in self.earlier):
            os.kill(os.getpid(), signal.SIGKILL)
        super().set(key, value)


def die_while_creating(*earlier: str) -> None:
    """Rank 1 does, at the first key without one of the words."""
    if dist.get_rank() == 1:
        Dying.earlier = earlier
        wrap_stores(Dying)
        new_group(seconds=5)


def check_reported(reason: str) -> None:
    """Rank 0 learns why the group cannot be created."""
    error = error_of(lambda: new_group(seconds=5))
    check(reason in error, f"the failed group raised {error!r}")
    os._exit(5)


def dead_before_joining() -> None:
    die_while_creating()
    check_reported("rank 1 did not join within 5 s")


def dead_while_sharing() -> None:
    die_while_creating("lifeline", "joined")
    check_reported("rank 1 has ended")


def dead_while_connecting() -> None:
    """oneCCL exchanges its first address."""
    die_while_creating("lifeline", "joined", "shared", "node")
    check_reported("the ranks could not connect")


def failed_creation() -> None:
    """Creating a group fails while a call is in flight. The call fails too, within its own timeout."""
    die_while_creating("lifeline", "joined", "shared", "node")
    work = dist.irecv(torch.ones(1), 1)  # never sent
    error = error_of(lambda: new_group(seconds=5))
    check("could not connect" in error, f"the failed group raised {error!r}")
    error = error_of(lambda: work.wait())
    check("rank 1 has ended" in error, f"the call in flight raised {error!r}")
    os._exit(5)


class Asked(Wrapped):
    """A store that counts its reads. Rank 1 arrives late in oneCCL's barriers."""

    reads = 0

    def get(self, key: str) -> bytes:
        Asked.reads += 1
        return super().get(key)

    def set(self, key: str, value: str) -> None:
        if "CCL_BARRIER" in key and dist.get_rank() == 1:
            time.sleep(0.5)
        super().set(key, value)


def late_in_barriers() -> None:
    """Ranks that wait in oneCCL's barriers pause between two reads of the store."""
    wrap_stores(Asked)
    new_group()
    check(
        Asked.reads < 500, f"read the store {Asked.reads} times"
    )  # without pauses, thousands of times per second


def same_store() -> None:
    """A group is created again over the same store."""
    store = dist.PrefixStore("again", dist.distributed_c10d._get_default_store())
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    for number in range(3):
        dist.init_process_group("ccl", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=30))
        ones = torch.ones(number + 1)
        dist.all_reduce(ones)
        check(ones.sum().item() == 2 * (number + 1), f"the sum is {ones.sum().item()}")
        if RELEASE < (2, 1):  # the barrier of init_process_group would count the ranks of both groups
            if rank == 0:
                store.delete_key("store_based_barrier_key:1")
            dist.barrier()
        if number < 2:
            dist.destroy_process_group()


def constructed() -> None:
    """Groups that a program constructs from a store, as it does with Intel's bindings."""
    rank, size = dist.get_rank(), dist.get_world_size()
    store = dist.PrefixStore("constructed", dist.distributed_c10d._get_default_store())
    check(isinstance(backend_of(), dist.ProcessGroupCCL), f"the default backend is a {type(backend_of())}")
    for _ in range(2):
        group = dist.ProcessGroupCCL(store, rank, size)
        tensor = torch.full((3,), float(rank + 1))
        group.allreduce([tensor]).wait()
        check(tensor.tolist() == [3.0] * 3, f"allreduce returned {tensor}")
        options = dist.BroadcastOptions()
        options.rootRank = 1
        tensor = torch.tensor([float(rank)])
        group.broadcast([tensor], options).wait()
        check(tensor.item() == 1, f"broadcast returned {tensor}")
        outputs = [[torch.zeros(1) for _ in range(size)]]
        group.allgather(outputs, [torch.tensor([float(rank)])]).wait()
        check([part.item() for part in outputs[0]] == [0, 1], f"allgather returned {outputs}")
        if rank == 0:
            group.send([torch.ones(2)], 1, 7).wait()
        else:
            received = torch.zeros(2)
            group.recv([received], 0, 7).wait()
            check(received.tolist() == [1, 1], f"recv returned {received}")
        group.barrier().wait()
    group = dist.ProcessGroupCCL(store=store, rank=rank, size=size, timeout=timedelta(seconds=40))
    check(group.options._timeout == timedelta(seconds=40), f"the timeout is {group.options._timeout}")
    try:
        dist.ProcessGroupCCL(store, size, size)
    except ValueError as error:
        check("rank is 2, size is 2" in str(error), f"a wrong rank raised {error!r}")
    else:
        check(False, "a wrong rank was accepted")
    endless_timeout(store)
    another_order(store)


def endless_timeout(store: dist.Store) -> None:
    """A timeout of a thousand years, which the clock cannot represent."""
    years = timedelta(days=365_000)
    group = dist.ProcessGroupCCL(store, dist.get_rank(), dist.get_world_size(), years)
    work = group.allreduce([torch.ones(1)])
    time.sleep(0.5)  # until the watchdog has checked it
    work.wait(years)
    group.barrier().wait()


def another_order(store: dist.Store) -> None:
    """In a group of all ranks in another order, messages name the ranks by their numbers in the job."""
    package = importlib.import_module("oneccl_bindings_for_pytorch")
    described = SimpleNamespace(
        store=dist.PrefixStore("reversed", store),
        group_id="reversed",
        group_rank=1 - dist.get_rank(),
        group_size=2,
        timeout=timedelta(seconds=50),
        global_ranks_in_group=[1, 0],
    )
    group = package._create(described, None)
    if dist.get_rank() == 1:
        error = error_of(lambda: group.monitored_barrier(timedelta(seconds=1)))
        check("rank 0 did not arrive within 1 s" in error, f"monitored_barrier raised {error!r}")
        set_key("reported")
    wait_for_key("reported")
    group.barrier().wait()
