"""Loads the libraries that oneCCL opens by name: hwloc, and libfabric with its providers.

Does not import torch. Every function raises ImportError with one line that names what is missing and what to do.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from oneccl_bindings_for_pytorch import _shm

FABRIC = "libfabric.so.1"
HWLOC = "libhwloc.so.15"
IMPI = "impi-rt<2021.19"  # later versions do not include libfabric
PROVIDERS_VARIABLE = "FI_PROVIDER_PATH"
SHM_PROVIDER = "libshm-fi.so"


def preload() -> None:
    """Load the libraries. Set FI_PROVIDER_PATH, the directory of libfabric's providers, unless the user has."""
    _load(HWLOC, "tcmlib")
    os.environ.setdefault(PROVIDERS_VARIABLE, str(_directory()))
    if os.environ.get("CCL_OFI_LIBRARY_PATH"):
        return  # the user has chosen the libfabric that oneCCL opens
    # oneCCL opens libfabric by its bare name, which then finds this one. The providers take their symbols from it.
    _load(FABRIC, IMPI)
    _check_providers()
    if provider := _load_shm_provider():
        _shm.prepare(provider)


def _directory() -> Path:
    return Path(sys.prefix) / "lib"


def _load(name: str, distribution: str) -> None:
    for candidate in (str(_directory() / name), name):
        try:
            ctypes.CDLL(candidate, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        return
    raise ImportError(
        f"ccl needs {name}, found neither in {_directory()} nor on the loader's path: pip install '{distribution}'"
    )


def _provider_directories() -> list[Path]:
    return [Path(part.lstrip("@+")) for part in os.environ[PROVIDERS_VARIABLE].split(":") if part]


def _load_shm_provider() -> ctypes.CDLL | None:
    """None if the provider is neither loadable nor requested: libfabric then ignores it, and oneCCL uses tcp."""
    requested = os.environ.get("CCL_ATL_SHM", "0") != "0"
    problem = f"not found in {os.environ[PROVIDERS_VARIABLE]}"
    for directory in _provider_directories():
        if (directory / SHM_PROVIDER).is_file():
            try:
                return ctypes.CDLL(str(directory / SHM_PROVIDER))
            except OSError as error:
                problem = str(error)
                break
    if requested:
        raise ImportError(
            f"CCL_ATL_SHM is {os.environ['CCL_ATL_SHM']!r}, but libfabric's {SHM_PROVIDER} cannot be loaded: "
            f"{problem}; install its dependencies (libatomic.so.1 is in Debian's libatomic1), "
            "or set CCL_ATL_SHM=0 and FI_PROVIDER=tcp"
        )
    return None


def _check_providers() -> None:
    if not any(path.is_file() or any(path.glob("*-fi.so")) for path in _provider_directories()):
        raise ImportError(
            f"{PROVIDERS_VARIABLE} is {os.environ[PROVIDERS_VARIABLE]!r}, expected a directory with libfabric's "
            f"providers (such as libtcp-fi.so): unset the variable, or pip install '{IMPI}'"
        )
