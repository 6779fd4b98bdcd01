"""A script that reads a launcher's variables finds them under every launcher. Torch-free.

Guides start ranks with Intel MPI or Open MPI and read `PMI_RANK` or `OMPI_COMM_WORLD_LOCAL_RANK`. Under another
launcher, such a script would take every rank for the only one.

A missing variable gets its value at the moment when the script reads it. Libraries, child processes and code in C
do not see it: oneCCL and Intel MPI would take the variables for those of an MPI launcher.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable
from types import FrameType
from typing import Any, Callable

from cpu_train_stack.adapt.adaptation import Situation
from cpu_train_stack.placement.launchers import HYDRA, MVAPICH2, OPEN_MPI

# A launcher's variable -> the variable that every rank has.
NAMES = {
    theirs: ours
    for launcher in (HYDRA, OPEN_MPI, MVAPICH2)
    for theirs, ours in (
        (launcher.rank, "RANK"),
        (launcher.world_size, "WORLD_SIZE"),
        (launcher.local_rank, "LOCAL_RANK"),
        (launcher.local_world_size, "LOCAL_WORLD_SIZE"),
    )
}
_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
# The modules of os.environ.
_MAPPINGS = frozenset({__name__, "os", "collections.abc", "_collections_abc"})


class _Data(dict[bytes, bytes]):
    """The data of os.environ. `suppliers`: return what the script finds in a variable that is not set, or None."""

    suppliers: tuple[Callable[[str], str | None], ...] = ()
    names: frozenset[bytes] = frozenset()  # of the variables that they supply

    def __missing__(self, key: bytes) -> bytes:
        if key not in self.names:  # first: torch.compile traces this method, but not sys._getframe
            raise KeyError(key)
        value = self._supplied(key) if is_script(sys._getframe(1)) else None
        if value is None:
            raise KeyError(key)
        return os.fsencode(value)

    def __delitem__(self, key: bytes) -> None:
        if key in self or self._supplied(key) is None:  # a value that is only supplied is not stored
            super().__delitem__(key)

    def _supplied(self, key: bytes) -> str | None:
        return next(filter(None, (supplier(os.fsdecode(key)) for supplier in self.suppliers)), None)


def supply(names: Iterable[str], supplier: Callable[[str], str | None]) -> None:
    """Give the script's own code values of variables that are not set. Libraries and child processes see none."""
    texts: Any = os.environ
    if not isinstance(texts._data, _Data):
        encoded: Any = os.environb  # a view of the same dictionary
        texts._data = encoded._data = _Data(texts._data)
    texts._data.suppliers = (*texts._data.suppliers, supplier)
    texts._data.names |= frozenset(map(os.fsencode, names))


def supply_all(situation: Situation, _sys: Any) -> None:
    """Supply the variables of all launchers."""

    def missing(name: str) -> str | None:
        ours = NAMES.get(name, "")
        value = os.environ.get(ours) if ours else None
        if value is None:
            return None
        situation.report(f"the script reads {name}, which its launcher does not set: it gets the value of {ours}")
        return value

    supply(NAMES, missing)


def is_script(frame: FrameType | None) -> bool:
    """Whether the code of a frame is the user's, and not a library's."""
    while frame is not None and frame.f_globals.get("__name__") in _MAPPINGS:
        frame = frame.f_back
    if frame is None:
        return False
    is_main = frame.f_globals.get("__name__") == "__main__"  # an installed module, with run -m
    return is_main or not frame.f_code.co_filename.startswith(_LIBRARIES)
