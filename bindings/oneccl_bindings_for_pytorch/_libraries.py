"""What has to be in place before oneCCL is loaded: libfabric and its providers, which it opens by name.

Torch-free. Every function raises ImportError with one line that says what is missing and what to do.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import sys
from pathlib import Path

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
        _make_shm_names_unique()
        return
    raise ImportError(
        f"ccl needs {FABRIC}, found it neither in {directory} nor on the loader's path: pip install impi-rt"
    )


def _check_providers() -> None:
    paths = [Path(part.lstrip("@+")) for part in os.environ[PROVIDERS_VARIABLE].split(":") if part]
    if not any(path.is_file() or any(path.glob("*-fi.so")) for path in paths):
        raise ImportError(
            f"{PROVIDERS_VARIABLE} is {os.environ[PROVIDERS_VARIABLE]!r}, expected a directory with libfabric's "
            "providers (libtcp-fi.so and others): unset it, or pip install impi-rt"
        )


def _make_shm_names_unique() -> None:
    """Start the counter in the names of libfabric's shared-memory files at a random number.

    A name is process id, user id and that counter. Processes of containers that share /dev/shm often have the same
    ids, and one would find the file of the other.
    """
    for part in os.environ[PROVIDERS_VARIABLE].split(":"):
        provider = Path(part.lstrip("@+")) / SHM_PROVIDER
        if not provider.is_file():
            continue
        try:
            counter = ctypes.c_int.in_dll(ctypes.CDLL(str(provider)), "smr_global_ep_idx")
        except (OSError, ValueError):
            return  # a build that hides the counter: the names stay what they are
        if counter.value == 0:
            counter.value = secrets.randbelow(2**30) + 1
        return
