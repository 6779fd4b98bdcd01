"""The libraries that a training process is started with: a faster allocator and Intel's OpenMP. Torch-free.

Found by soname, because distributions ship no unversioned lib*.so with the run-time package, and verified in
/proc/self/maps afterwards, because the dynamic linker only warns about a preload that it cannot load.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Callable


@dataclass(frozen=True)
class Library:
    """One thing to preload. `sonames`: the names that provide it, best first. `rivals`: its other providers."""

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
        "threads come from the OpenMP library that torch brings",
        "install the Python package intel-openmp",
    ),
)


@dataclass(frozen=True)
class Preloads:
    """`paths`: what to add to LD_PRELOAD, in order. `reasons` and `warnings` say why, in words."""

    paths: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def find(environ: Mapping[str, str], locate: Callable[[str], str | None] | None = None) -> Preloads:
    """The paths of LIBRARIES on this host, but for those that the user's own LD_PRELOAD provides already."""
    locate = locate or Locator().locate
    paths: list[str] = []
    reasons: list[str] = []
    warnings: list[str] = []
    users = split(environ.get("LD_PRELOAD", ""))
    for library in LIBRARIES:
        own = [path for path in users if Path(path).name.startswith(library.rivals)]
        path = next(filter(None, map(locate, library.sonames)), None)
        if own:
            reasons.append(f"{library.name} is not added: LD_PRELOAD has {own[0]} already")
        elif path:
            paths.append(path)
            reasons.append(f"{library.name} is preloaded from {path}")
        else:
            warnings.append(f"{' or '.join(library.sonames)} was not found, so {library.without}: {library.fix}")
    return Preloads(tuple(paths), tuple(reasons), tuple(warnings))


class Locator:
    """Finds a library's file: in the Python environment, in the dynamic linker's cache, in the usual folders."""

    def __init__(self, prefix: str = sys.prefix, cache: str | None = None) -> None:
        self._prefix = Path(prefix) / "lib"
        self._cache = cache
        self._usual = [
            Path(folder) for folder in (f"/usr/lib/{os.uname().machine}-linux-gnu", "/usr/lib64", "/usr/lib")
        ]

    def locate(self, soname: str) -> str | None:
        """The absolute path of the file that provides `soname`, None where there is none."""
        candidates = [self._prefix / soname, *self._cached(soname), *(folder / soname for folder in self._usual)]
        return next((str(path) for path in candidates if path.is_file()), None)

    def _cached(self, soname: str) -> list[Path]:
        if self._cache is None:
            # Users' PATH often lacks /sbin. The 64-bit libraries are marked "libc6,x86-64" or similar.
            listing = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False)
            self._cache = listing.stdout
        found = re.findall(rf"^\s*{re.escape(soname)} \(libc6,.*?\) => (.*)$", self._cache, re.MULTILINE)
        return [Path(path) for path in found]


def split(value: str) -> list[str]:
    """LD_PRELOAD's entries: the dynamic linker takes colons and spaces between them."""
    return [entry for entry in re.split(r"[:\s]+", value) if entry]


def compose(users: str, paths: Iterable[str]) -> str:
    """LD_PRELOAD with the user's entries first, then ours, none twice."""
    return ":".join(dict.fromkeys([*split(users), *paths]))


def verify(paths: Iterable[str], maps_path: Path = Path("/proc/self/maps")) -> list[str]:
    """A warning for each of `paths` that this process has not loaded."""
    loaded = {line.split(maxsplit=5)[5] for line in maps_path.read_text().splitlines() if line.count("/")}
    return [
        f"{path} was to be preloaded, but this process has not loaded it: "
        f"check that it exists on this node and is built for {os.uname().machine}"
        for path in paths
        if str(Path(path).resolve()) not in loaded
    ]
