"""The torch.distributed backend "ccl": oneCCL's collectives for tensors in host memory.

    import oneccl_bindings_for_pytorch
    torch.distributed.init_process_group("ccl", ...)

`cwd` is the package's directory, for `source $cwd/env/setvars.sh`.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed

from oneccl_bindings_for_pytorch import _libraries, _shm
from oneccl_bindings_for_pytorch._version import TORCH_VERSION, __version__

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import _DistributedBackendOptions

__all__ = ["__version__", "cwd"]

cwd = str(Path(__file__).resolve().parent)

if torch.__version__.split("+")[0] != TORCH_VERSION:
    raise ImportError(
        f"oneccl_bind_pt {__version__} is built for torch {TORCH_VERSION}, found torch {torch.__version__}: "
        f"install torch {TORCH_VERSION}, or the oneccl_bind_pt of your torch"
    )

_libraries.preload()

from oneccl_bindings_for_pytorch._backend import ProcessGroupCCL, create, stop  # noqa: E402  after the checks: its errors would say nothing


def _create(options: _DistributedBackendOptions, _backend_options: object) -> torch.distributed.Backend:
    covers_all = not options.global_ranks_in_group or options.group_size == torch.distributed.get_world_size()
    first = _shm.next_number()
    backend = create(
        store=options.store,
        rank=options.group_rank,
        size=options.group_size,
        timeout=options.timeout,
        name=options.group_id,
        # Empty for the default group, which has all ranks; so may another one.
        global_ranks=[] if covers_all else list(options.global_ranks_in_group),
    )
    _shm.made(range(first, _shm.next_number()), opened_by_all=covers_all)
    return backend


def _with_ccl(set_timeout: Callable[..., None]) -> Callable[..., None]:
    """torch's own function passes over every backend but its own two."""

    def _set_pg_timeout(timeout: timedelta, group: torch.distributed.ProcessGroup | None = None) -> None:
        found = torch.distributed.group.WORLD if group is None else group
        cpu = torch.device("cpu")
        backend = found._get_backend(cpu) if cpu in getattr(found, "_device_types", ()) else None
        if isinstance(backend, ProcessGroupCCL):
            backend.set_timeout(timeout)
        else:
            set_timeout(timeout, group)

    return _set_pg_timeout


torch.distributed.distributed_c10d._set_pg_timeout = _with_ccl(torch.distributed.distributed_c10d._set_pg_timeout)
# Before Python and then the C++ libraries end: callbacks need the one, transfers the others.
atexit.register(stop)
torch.distributed.Backend.register_backend("ccl", _create, extended_api=True, devices=["cpu"])
