"""What has to be in place before oneCCL is loaded: libfabric and its providers, which it opens by name.

Torch-free. Every function raises ImportError with one line that says what is missing and what to do.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from oneccl_bindings_for_pytorch import _shm

FABRIC = "libfabric.so.1"
PROVIDERS_VARIABLE = "FI_PROVIDER_PATH"
SHM_PROVIDER = "libshm-fi.so"


def preload() -> None:
    """Load libfabric and say where its providers are, where the user did not."""
    directory = Path(sys.prefix) / "lib"
    os.environ.setdefault(PROVIDERS_VARIABLE, str(directory))
    candidates = [str(directory / FABRIC), FABRIC]
    if os.environ.get("CCL_OFI_LIBRARY_PATH"):
        return  # the user says which one oneCCL opens
    for candidate in candidates:
        try:
            # oneCCL opens it by its bare name and then gets this one; the providers take their symbols from it.
            ctypes.CDLL(candidate, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        _check_providers()
        for directory in _provider_directories():
            if (directory / SHM_PROVIDER).is_file():
                _shm.prepare(directory / SHM_PROVIDER)
                break
        return
    raise ImportError(
        f"ccl needs {FABRIC}, found it neither in {directory} nor on the loader's path: pip install impi-rt"
    )


def _provider_directories() -> list[Path]:
    return [Path(part.lstrip("@+")) for part in os.environ[PROVIDERS_VARIABLE].split(":") if part]


def _check_providers() -> None:
    if not any(path.is_file() or any(path.glob("*-fi.so")) for path in _provider_directories()):
        raise ImportError(
            f"{PROVIDERS_VARIABLE} is {os.environ[PROVIDERS_VARIABLE]!r}, expected a directory with libfabric's "
            "providers (libtcp-fi.so and others): unset it, or pip install impi-rt"
        )
