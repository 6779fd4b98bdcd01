"""Removes files that a training job never reads from a virtual environment, and links copies of libraries.

Usage: trim.py VENV. Prints the size that each rule saves.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

# A glob in the environment -> the reason why its files are not needed. SP: site-packages.
UNUSED = {
    "include": "headers",
    "SP/*/include": "headers",
    "SP/numpy/_core/include": "headers",
    "SP/pyarrow/includes": "Cython's headers",
    "SP/pyarrow/src": "C++ sources",
    "SP/**/*.h": "headers",
    "SP/**/*.hpp": "headers",
    "SP/**/*.pxd": "Cython's headers",
    "SP/torch/share/cmake": "build files",
    "lib/cmake": "build files",
    "lib/pkgconfig": "build files",
    "SP/torch/test": "torch's C++ tests",
    "SP/torch/bin/test_*": "torch's C++ tests",
    "SP/torch/bin/protoc*": "the compiler of protobuf",
    "SP/torch/lib/*_test.so": "torch's C++ tests",
    "SP/torch/lib/libbackend_with_compiler.so": "torch's C++ tests",
    "SP/torch/lib/libaoti_custom_ops.so": "torch's C++ tests",
    "SP/*/**/tests": "Python packages' own tests",
    "SP/numpy/_core/tests/[!_]*": "numpy's own tests",
    "**/*.a": "static libraries",
    "**/*.dbg": "debug symbols",
    "opt/compiler": "OpenMP device code for the compiler",
    "lib/libomptarget*": "OpenMP offload to accelerators",
    "lib/libarcher.so": "OpenMP race detection",
    "lib/libiompstubs5.so": "OpenMP without threads",
    "lib/libiomp5_db.so": "OpenMP debugger support",
    "lib/libur_*": "runtime of accelerators",
    "lib/libtcm_debug*": "debug build",
    "bin/IMB-*": "Intel MPI's benchmarks",
    "bin/fi_*": "libfabric's own programs, which do not run without Intel MPI's environment",
    "bin/impi_info": "the same",
}
# A folder that a rule matches and that stays: numpy.testing imports a module from it (numpy 2.0 to 2.3).
IMPORTED = ("numpy/_core/tests",)


def main(venv: Path) -> None:
    """Apply the rules to the environment at `venv`."""
    site_packages = next((venv / "lib").glob("python3.*/site-packages"))
    for pattern, reason in UNUSED.items():
        glob = pattern.replace("SP/", f"{site_packages.relative_to(venv)}/")
        needed = {site_packages / folder for folder in IMPORTED}
        saved = sum(remove(path) for path in sorted(set(venv.glob(glob)) - needed))
        print(f"trim: {saved / 1e6:6.1f} MB  {pattern}  ({reason})")
    saved = link_copies(venv / "lib")
    print(f"trim: {saved / 1e6:6.1f} MB  lib/*.so*  (copies of one library under several names)")


def remove(path: Path) -> int:
    """Remove a file or a folder. Returns its size in bytes."""
    if path.is_symlink() or path.is_file():
        size = 0 if path.is_symlink() else path.stat().st_size
        path.unlink()
        return size
    if not path.is_dir():  # an earlier rule removed it
        return 0
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file() and not file.is_symlink())
    shutil.rmtree(path)
    return size


def link_copies(folder: Path) -> int:
    """Replace copies of a library by links to the copy with the longest name. Returns the saved size in bytes.

    A wheel cannot contain links: it has a copy of a library for each of its names.
    """
    kept: dict[str, Path] = {}
    saved = 0
    for path in sorted(folder.glob("*.so*"), key=lambda path: (-len(path.name), path.name)):
        if path.is_symlink():
            continue
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest in kept:
            saved += path.stat().st_size
            path.unlink()
            path.symlink_to(kept[digest].name)
        else:
            kept[digest] = path
    return saved


if __name__ == "__main__":
    main(Path(sys.argv[1]))
