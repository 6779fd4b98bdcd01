"""The process group, created before the user's code runs and destroyed after it.

Several libraries refuse unknown backend names, but use an existing group with any backend. They also read RANK,
WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE, which rank.start exports.
"""

from __future__ import annotations

import functools
import json
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Callable

import torch
import torch.distributed as dist

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import MeetingError, UsageError, line_of
from cpu_train_stack.cli.say import say
from cpu_train_stack.group.backends import BACKENDS, check_backend
from cpu_train_stack.placement.detect import DistributedEnvironment
from cpu_train_stack.placement.launchers import TORCHRUN

# How long ranks wait for each other at the start, even with a longer timeout for collectives.
JOIN_SECONDS = 300.0
_POLL_SECONDS = 0.02
# Keys of the store: ranks take a ticket, and rank 0 answers each ticket with the name of this start.
_TICKETS, _ANSWER = "cpu-train-stack/tickets", "cpu-train-stack/answer/{}"
# Keys of one start: how many ranks have joined, 1 for each of them, and whether all have.
_COUNT, _JOINED, _ALL = "cpu-train-stack/count", "cpu-train-stack/joined/{}", "cpu-train-stack/all"

# The store of the ranks, in which failing ranks report to each other. Empty without a group.
MEETING: list[dist.Store] = []
# Creates the group of a job whose group is created only when the script needs it.
_PENDING: list[Callable[[], None]] = []


@contextmanager
def initialize(
    environment: DistributedEnvironment,
    backend: str,
    timeout_seconds: float,
    when_needed: bool = False,
) -> Iterator[None]:
    """A context in which the default process group of all `world_size` ranks exists.

    `when_needed`: only `create_pending` creates the group. `timeout_seconds` bounds each collective; the start is
    bounded by JOIN_SECONDS too. Raises UsageError, one line, if the group cannot be created: no such backend,
    master unreachable, port in use, ranks missing. If the body raises, the group is not destroyed, because that
    may wait for ranks that wait for this one: the process must exit.
    """
    check_backend(backend)
    if when_needed:
        _PENDING[:] = [functools.partial(_create, environment, backend, timeout_seconds)]
    else:
        _create(environment, backend, timeout_seconds)
    yield
    if dist.is_initialized():  # the user's script may have destroyed it
        dist.destroy_process_group()


def is_pending() -> bool:
    """Whether the job has no group until its script needs one."""
    return bool(_PENDING)


def create_pending() -> None:
    """Create the group of such a job. Otherwise do nothing."""
    pending = _PENDING[:]
    _PENDING.clear()  # torch asks for the default group meanwhile
    try:
        for create in pending:
            create()
    finally:
        _PENDING[:] = pending  # the script may destroy the group, and create it again


def _create(environment: DistributedEnvironment, backend: str, timeout_seconds: float) -> None:
    join_seconds = min(timeout_seconds, JOIN_SECONDS)
    BACKENDS[backend](environment, join_seconds)
    timeout = timedelta(seconds=timeout_seconds)
    try:
        store = _store(environment, join_seconds)
        store.set_timeout(timeout)
        MEETING[:] = [store]
        dist.init_process_group(
            backend, store=store, rank=environment.rank, world_size=environment.world_size, timeout=timeout
        )
    except (RuntimeError, TimeoutError) as error:  # every failure between ranks
        raise MeetingError(explain(error, environment, join_seconds)) from error


def gather(value: Any) -> list[Any]:
    """The values of all ranks, in the order of the ranks, as JSON keeps them: a tuple comes back as a list.

    A collective, except without a process group. torch's own collectives of objects run what a pickle asks for.
    """
    own = bytearray(json.dumps(value), "ascii")
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return [json.loads(own)]
    lengths = _all_gather(torch.tensor([len(own)]))
    longest = int(max(lengths))
    texts = _all_gather(torch.frombuffer(own.ljust(longest), dtype=torch.uint8))
    return [json.loads(bytes(text.tolist())) for text in texts]


def _all_gather(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors of all ranks, each of the shape and dtype of `tensor`."""
    gathered = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, tensor)
    return gathered


def agree(error: str | None) -> None:
    """A collective: return if no rank has an error, otherwise end all ranks with exit code 2.

    Every rank passes its own one-line message or None. Rank 0 prints each distinct message once, with the ranks
    that reported it unless all did.
    """
    gathered = gather(error)
    if not any(gathered):
        return
    if not dist.is_initialized() or dist.get_rank() == 0:
        for text in dict.fromkeys(filter(None, gathered)):
            ranks = [rank for rank, other in enumerate(gathered) if other == text]
            where = "" if len(ranks) == len(gathered) else f"rank {', '.join(map(str, ranks))}: "
            say(f"error: {where}{text}")
    raise SystemExit(contract.USAGE_EXIT_CODE)


@contextmanager
def agreement() -> Iterator[None]:
    """A block that every rank runs, and a collective at its end: a UsageError on any rank ends all ranks."""
    error: str | None = None
    try:
        yield
    except UsageError as found:
        error = line_of(found)
    agree(error)


def _store(environment: DistributedEnvironment, join_seconds: float) -> dist.Store:
    """A store that every rank has reached."""
    if environment.world_size == 1:
        return dist.HashStore()  # needs no port
    rendezvous = dist.rendezvous(
        "env://",  # honours the store that torchrun's agent serves already
        rank=environment.rank,
        world_size=environment.world_size,
        timeout=timedelta(seconds=join_seconds),
    )
    store, _, _ = next(rendezvous)
    # The backend connects within the collective timeout: wait for all ranks first.
    return dist.PrefixStore("cpu-train-stack", _join(store, environment, join_seconds))


def _join(store: dist.Store, environment: DistributedEnvironment, join_seconds: float) -> dist.Store:
    """A prefix of the store for this start of the ranks, once all of them have joined. Raises MeetingError.

    torchrun's agents may keep their store across restarts, with the keys of earlier ranks, and may count restarts
    differently. So rank 0 names each start, and answers the ranks that ask for the name.
    """
    end = time.monotonic() + join_seconds
    ranks = range(environment.world_size)
    name = uuid.uuid4().hex
    if environment.rank:
        answer = _ANSWER.format(store.add(_TICKETS, 1))  # a unique ticket, also across restarts
        if not _wait(store, answer, end):
            raise _absent(ranks[:1], environment, join_seconds)
        name = store.get(answer).decode()
    started = dist.PrefixStore(name, store)
    # Counters, because the stores of torch 2.1 and older cannot check whether a key exists.
    started.add(_JOINED.format(environment.rank), 1)
    started.add(_COUNT, 1)
    answered = 0
    while environment.rank == 0 and time.monotonic() < end:
        asked = store.add(_TICKETS, 0)
        for ticket in range(answered + 1, asked + 1):
            store.set(_ANSWER.format(ticket), name)
        answered = asked
        if started.add(_COUNT, 0) == len(ranks):
            started.set(_ALL, "")
            break
        time.sleep(_POLL_SECONDS)
    if not _wait(started, _ALL, end):
        missing = [rank for rank in ranks if not started.add(_JOINED.format(rank), 0)]
        raise _absent(missing or ranks[:1], environment, join_seconds)
    return started


def _wait(store: dist.Store, key: str, end: float) -> bool:
    """Wait until a key exists, or time.monotonic() reaches `end`. Returns whether it exists.

    Raises RuntimeError if the store is lost.
    """
    try:
        store.wait([key], timedelta(seconds=max(_POLL_SECONDS, end - time.monotonic())))
    except (RuntimeError, TimeoutError):
        if time.monotonic() < end - _POLL_SECONDS:
            raise
        return False
    return True


def _absent(ranks: Sequence[int], environment: DistributedEnvironment, seconds: float) -> MeetingError:
    return MeetingError(
        f"rank {', '.join(map(str, ranks))} of {environment.world_size} did not join within {seconds:g} s: "
        "check why it did not start, or start all ranks within that time"
    )


def explain(error: Exception, environment: DistributedEnvironment, join_seconds: float) -> str:
    """A one-line error, with what to do, for torch's errors when ranks or nodes cannot connect."""
    text = " ".join(f"{error} {error.__cause__ or ''}".split())
    where = f"{environment.master_addr}:{environment.master_port}"
    kind = type(error).__name__
    if kind == "RendezvousTimeoutError":
        return (
            f"not all {environment.world_size} nodes met at {where} within {join_seconds:g} s: start all of them "
            "within that time, with this --rdzv-endpoint"
        )
    if kind == "RendezvousConnectionError" and "EADDRINUSE" not in text:
        return (
            f"the launcher at {where}, where the nodes meet, is not responding: check that it is running, read "
            "its log, and check that this node can reach it"
        )
    if kind == "RendezvousClosedError":
        return f"the job that met at {where} has ended, expected a running job: restart all nodes"
    if text.startswith("ccl: "):  # the ranks have met, and the backend reports its own error
        return f"{text[:400]}; read that rank's log, or try --backend gloo"
    if "EADDRINUSE" in text or "address already in use" in text.lower():
        return (
            f"port {environment.master_port} on this host is in use, expected a free port for the ranks to meet: "
            "stop the program that uses it, or choose another port (MASTER_PORT, or launch --master-port) for "
            "every rank"
        )
    if "clients joined" in text:
        joined = text.split("waiting for clients.")[-1].split("clients")[0].strip().replace("/", " of ")
        what = "nodes" if environment.launcher == "launch" else "ranks"
        return (
            f"only {joined} {what} met at {where} within {join_seconds:g} s: start them all within that time, "
            "with this MASTER_ADDR and MASTER_PORT"
        )
    # Node 0 can be reached, but another node is missing. The first text is torch 2.0's and older, the second is of
    # newer releases, on nodes other than node 0.
    if environment.launcher == "launch" and ("Socket Timeout" in text or "wait timeout after" in text):
        return (
            f"not all {environment.world_size} nodes met at {where} within {join_seconds:g} s: check why the "
            "others did not start, or start all of them within that time"
        )
    if kind in ("DistNetworkError", "DistStoreError") or "connect" in text.lower():
        agent = "the launcher of node 0" if environment.launcher in (TORCHRUN.name, "launch") else "rank 0"
        return (
            f"{agent} cannot be reached at {where} within {join_seconds:g} s, expected it to listen there: check "
            f"that it runs, MASTER_ADDR, MASTER_PORT and firewalls ({text[:200]})"
        )
    return f"the process group cannot be created ({text[:300]}): check the network between the nodes"
