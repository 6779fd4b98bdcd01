"""The libraries that a rank preloads (LD_PRELOAD): a faster allocator and Intel's OpenMP. Torch-free.

`find` finds them by soname, because run-time packages contain no unversioned lib*.so. `not_loaded` checks them in
the process's memory map, because the dynamic linker only warns about a preload that it cannot load.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Callable

from cpu_train_stack.machine import processes


@dataclass(frozen=True)
class Library:
    """A library to preload. `sonames`: the files that provide it, best first. `rivals`: prefixes of alternatives.

    `without`: the consequence of not loading it.
    """

    name: str
    sonames: tuple[str, ...]
    rivals: tuple[str, ...]
    without: str
    fix: str


LIBRARIES = (
    Library(
        "tcmalloc",
        ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4"),
        ("libtcmalloc", "libjemalloc", "libmimalloc"),
        "memory comes from the slower malloc of the C library",
        "install the Debian package libtcmalloc-minimal4",
    ),
    Library(
        "Intel OpenMP",
        ("libiomp5.so",),
        ("libiomp5", "libomp", "libgomp"),
        "threads come from the OpenMP library that torch bundles",
        "install the Python package intel-openmp",
    ),
)


@dataclass(frozen=True)
class Preloads:
    """`paths`: to add to LD_PRELOAD, in order. `reasons` and `warnings`: for people."""

    paths: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@cache
def _linker_cache() -> str:
    # Users' PATH often lacks /sbin.
    return subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout


def locate(soname: str, prefix: str = sys.prefix, cache: str | None = None) -> str | None:
    """The absolute path of the file that provides `soname`, or None.

    Found in the Python environment at `prefix`, in the dynamic linker's `cache`, or in the usual folders.
    """
    # The 64-bit libraries are marked "libc6,x86-64" or similar.
    pattern = rf"^\s*{re.escape(soname)} \(libc6,.*?\) => (.*)$"
    cached = re.findall(pattern, _linker_cache() if cache is None else cache, re.MULTILINE)
    folders = (f"/usr/lib/{os.uname().machine}-linux-gnu", "/usr/lib64", "/usr/lib")
    candidates = [f"{prefix}/lib/{soname}", *cached, *(f"{folder}/{soname}" for folder in folders)]
    return next(filter(os.path.isfile, candidates), None)


def find(environ: Mapping[str, str], locate: Callable[[str], str | None] = locate) -> Preloads:
    """The paths of LIBRARIES on this host, except libraries that the user's LD_PRELOAD provides already.

    A path that does not exist provides nothing: the linker prints an error and continues. Guides name the paths of
    other distributions.
    """
    paths: list[str] = []
    reasons: list[str] = []
    users = split(environ.get("LD_PRELOAD", ""))
    # The linker itself searches for names without a slash, and replaces $LIB and the like.
    files = set(filter(os.path.isfile, users))
    absent = [path for path in users if "/" in path and "$" not in path and path not in files]
    warnings = [f"LD_PRELOAD has {path}, which does not exist here: remove it from LD_PRELOAD" for path in absent]
    for library in LIBRARIES:
        own = [path for path in users if path not in absent and Path(path).name.startswith(library.rivals)]
        path = next(filter(None, map(locate, library.sonames)), None)
        if own:
            reasons.append(f"{library.name} is not added: LD_PRELOAD has {own[0]} already")
        elif path:
            paths.append(path)
            reasons.append(f"{library.name} is preloaded from {path}")
        else:
            warnings.append(f"{' or '.join(library.sonames)} was not found, so {library.without}: {library.fix}")
    return Preloads(tuple(paths), tuple(reasons), tuple(warnings))


def split(value: str) -> list[str]:
    """The entries of LD_PRELOAD, which are separated by colons or spaces."""
    return [entry for entry in re.split(r"[:\s]+", value) if entry]


def compose(users: str, paths: Iterable[str]) -> str:
    """LD_PRELOAD with the user's entries first, then `paths`, without duplicates."""
    return ":".join(dict.fromkeys([*split(users), *paths]))


def not_loaded(paths: Iterable[str], mapped_files: Collection[str]) -> list[str]:
    """Those of `paths` that a process with these mapped files (processes.mapped_files) has not loaded."""
    return [path for path in paths if str(Path(path).resolve()) not in mapped_files]


def verify(paths: Iterable[str]) -> list[str]:
    """A warning for each of `paths` that this process has not loaded."""
    return [
        f"{path} was to be preloaded, but this process has not loaded it: "
        f"check that it exists on this node and is built for {os.uname().machine}"
        for path in not_loaded(paths, processes.mapped_files())
    ]
