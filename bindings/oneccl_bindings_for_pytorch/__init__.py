"""The torch.distributed backend "ccl": collectives of oneCCL for tensors in host memory.

    import oneccl_bindings_for_pytorch
    torch.distributed.init_process_group("ccl", ...)

`cwd` is the directory of the package, for `source $cwd/env/setvars.sh`.
"""

from __future__ import annotations

import atexit
import functools
from collections.abc import Callable, Iterable
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed
import torch.distributed.distributed_c10d as _c10d

from oneccl_bindings_for_pytorch import _libraries, _shm
from oneccl_bindings_for_pytorch._version import TORCH_VERSION, __version__

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import _DistributedBackendOptions

__all__ = ["__version__", "cwd"]

cwd = str(Path(__file__).resolve().parent)

if torch.__version__.split("+")[0] != TORCH_VERSION:
    raise ImportError(
        f"oneccl_bind_pt {__version__} is built for torch {TORCH_VERSION}, found torch {torch.__version__}: "
        f"install torch {TORCH_VERSION}, or the oneccl_bind_pt that is built for torch {torch.__version__}"
    )

_libraries.preload()
# Loaded after the checks above, whose errors are clearer than those of the loader.
_backend = import_module("oneccl_bindings_for_pytorch._backend")
create, ProcessGroupCCL = _backend.create, _backend.ProcessGroupCCL


def _create(options: _DistributedBackendOptions, _backend_options: object) -> torch.distributed.Backend:
    ranks = list(options.global_ranks_in_group)  # empty for the default group
    covers_all = not ranks or options.group_size == torch.distributed.get_world_size()
    with _shm.recorded(opened_by_all=covers_all):
        return create(
            store=options.store,
            rank=options.group_rank,
            size=options.group_size,
            timeout=options.timeout,
            name=options.group_id,
            global_ranks=ranks,
            covers_job=covers_all,
        )


def _with_group_ranks(new_group: Callable[..., Any]) -> Callable[..., Any]:
    """Extend torch's function, which does not pass the group's name and ranks to the backend before torch 1.13."""

    @functools.wraps(new_group)
    def _new_process_group_helper(
        size: int, rank: int, ranks: list[int], *arguments: Any, group_name: str | None = None, **options: Any
    ) -> Any:
        _described.group_id = group_name or str(_c10d._group_count)
        _described.global_ranks_in_group = ranks
        return new_group(size, rank, ranks, *arguments, group_name=group_name, **options)

    return _new_process_group_helper


def _create_described(
    store: torch.distributed.Store, rank: int, size: int, timeout: timedelta
) -> torch.distributed.ProcessGroup:
    described = SimpleNamespace(store=store, group_rank=rank, group_size=size, timeout=timeout, **vars(_described))
    return _create(described, None)


def _constructed(construct: Callable[..., None]) -> Callable[..., None]:
    """Extend the constructor to keep the list of files in /dev/shm."""

    @functools.wraps(construct)
    def recorded(self: object, *arguments: Any, **options: Any) -> None:
        with _shm.recorded(opened_by_all=False):
            construct(self, *arguments, **options)

    return recorded


# The calls that have to end before a future can be complete.
_places: WeakKeyDictionary[torch._C.Future, tuple[Any, ...]] = WeakKeyDictionary()


def _with_place(get_future: Callable[..., Any]) -> Callable[..., Any]:
    """Extend torch's method to keep the call that the future belongs to."""

    @functools.wraps(get_future)
    def get_placed_future(work: Any) -> Any:
        future = get_future(work)
        if place := _backend.place_of(work):
            _places[future] = (place,)
        return future

    return get_placed_future


def _with_places(collect: Callable[..., Any]) -> Callable[..., Any]:
    """Extend torch's function to keep the calls of all its futures."""

    @functools.wraps(collect)
    def collect_placed(futures: list[torch._C.Future]) -> Any:
        collected = collect(futures)
        _places[collected] = tuple(place for future in futures for place in _places.get(future, ()))
        return collected

    return collect_placed


def _in_turn(wait: Callable[..., Any]) -> Callable[..., Any]:
    """Extend a method of torch's futures: a callback gives way to the later calls that it waits for."""

    @functools.wraps(wait)
    def wait_in_turn(future: torch._C.Future) -> Any:
        for place in _places.get(future, ()):
            place.give_way()
        return wait(future)

    return wait_in_turn


def _in_next_lane(attach: Callable[..., Any]) -> Callable[..., Any]:
    """Extend a method of torch's futures: collectives of the callback use a lane of their own.

    Whether the callback runs here, because the future is complete already, or in a thread of the backend, differs
    between ranks. Its collectives have to meet those of the same callback on the other ranks.
    """

    @functools.wraps(attach)
    def attach_in_next_lane(future: torch._C.Future, callback: Callable[..., Any]) -> Any:
        attached = attach(future, _backend.in_next_lane(callback))
        if attached is not None and (places := _places.get(future)):
            _places[attached] = places
        return attached

    return attach_in_next_lane


def _backend_of(group: Any) -> Any:
    """The ccl backend of a group, or None."""
    try:
        backend = group._get_backend(torch.device("cpu"))
    except (AttributeError, RuntimeError):  # not a group, or one without a backend for CPUs
        return None
    return backend if isinstance(backend, ProcessGroupCCL) else None


def _groups() -> Iterable[Any]:
    return _c10d._world.pg_map if _release >= (2, 0) else _c10d._pg_map


def _with_timeout(set_timeout: Callable[..., None]) -> Callable[..., None]:
    """Extend torch's function, which ignores all backends but gloo and nccl, to ccl."""

    def _set_pg_timeout(timeout: timedelta, group: torch.distributed.ProcessGroup | None = None) -> None:
        if backend := _backend_of(_c10d.GroupMember.WORLD if group is None else group):
            backend.set_timeout(timeout)
        else:
            set_timeout(timeout, group)

    return _set_pg_timeout


def _with_shutdown(destroy: Callable[..., None]) -> Callable[..., None]:
    """Extend torch's function to shut ccl down, as it does itself since torch 2.7."""

    @functools.wraps(destroy)
    def destroy_process_group(group: torch.distributed.ProcessGroup | None = None) -> None:
        covers_all = group is None or group is _c10d.GroupMember.WORLD
        for left in reversed(list(_groups())) if covers_all else [group]:
            if backend := _backend_of(left):
                backend.shutdown()
        destroy(group)

    return destroy_process_group


_release = tuple(int(part) for part in TORCH_VERSION.split(".")[:2])
# Where Intel's bindings have it: ProcessGroupCCL(store, rank, size, timeout).
ProcessGroupCCL.__init__ = _constructed(ProcessGroupCCL.__init__)
torch.distributed.ProcessGroupCCL = _c10d.ProcessGroupCCL = ProcessGroupCCL
for _attach in ("then", "add_done_callback"):
    setattr(torch._C.Future, _attach, _in_next_lane(getattr(torch._C.Future, _attach)))
torch._C.Future.wait = _in_turn(torch._C.Future.wait)
torch._C._collect_all = _with_places(torch._C._collect_all)
_Work = torch._C._distributed_c10d.Work
_Work.get_future = _with_place(_Work.get_future)
if _release < (2, 0):  # a group is its own backend
    ProcessGroupCCL._get_backend = lambda self, _device: self
if _release >= (2, 3):
    _c10d._set_pg_timeout = _with_timeout(_c10d._set_pg_timeout)
if _release < (2, 7):
    torch.distributed.destroy_process_group = _c10d.destroy_process_group = _with_shutdown(
        _c10d.destroy_process_group
    )
# Runs before the interpreter, which callbacks need, and the C++ libraries, which transfers need, shut down.
atexit.register(_backend.stop)
if _release >= (1, 13):
    _devices = {"devices": ["cpu"]} if _release >= (2, 1) else {}
    torch.distributed.Backend.register_backend("ccl", _create, extended_api=True, **_devices)
else:
    _described = SimpleNamespace()
    _c10d._new_process_group_helper = _with_group_ranks(_c10d._new_process_group_helper)
    torch.distributed.Backend.register_backend("ccl", _create_described)
