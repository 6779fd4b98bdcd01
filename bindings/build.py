"""Compile the extension against the torch of this Python and pack the wheel. Requires g++ and strip; offline.

    python build.py --oneccl DIR --output DIR

The DIR of --oneccl is the unpacked oneccl-devel wheel. The same inputs produce the same wheel, byte for byte.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
PACKAGE = "oneccl_bindings_for_pytorch"
DISTRIBUTION = "oneccl_bind_pt"
STATIC_LIBRARY = Path("lib/ccl/cpu/lib/libccl.a")
HEADER = Path("include/oneapi/ccl.hpp")
# The only release whose private parts are known: src/oneccl_private.hpp lists them.
ONECCL_RELEASE = "2022.2.0"
# The function of oneCCL that src/oneccl_private.cpp replaces.
REPLACED = "_ZN7atl_ofi21prov_ep_handle_cq_errEP17atl_ofi_prov_ep_t"
# The environment's lib, relative to the package in site-packages.
RPATH = "$ORIGIN/../../.."
FLAGS = ["-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unused-parameter"]
SANITIZERS = ("address", "thread")
# -O1 overrides the -O2 of FLAGS, and -g1 keeps line numbers.
SANITIZER_FLAGS = ["-fno-omit-frame-pointer", "-O1", "-g1"]
PRECOMPILED = """\
#include <ATen/ATen.h>
#include <oneapi/ccl.hpp>
#include "releases.hpp"
"""
METADATA = """\
Metadata-Version: 2.1
Name: {name}
Version: {version}
Summary: The torch.distributed backend "ccl": oneCCL's collectives for tensors in host memory
License: Apache-2.0
Requires-Python: =={python}.*
Requires-Dist: torch=={version}
"""
WHEEL = """\
Wheel-Version: 1.0
Generator: build.py
Root-Is-Purelib: false
Tag: {tag}
"""


class BuildError(Exception):
    """An error in the inputs, in one line."""


def abi(torch: ModuleType) -> list[str]:
    """The flags that this torch was compiled with, which an extension needs to share C++ types with torch."""
    flags = [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    for name in ("COMPILER_TYPE", "STDLIB", "BUILD_ABI"):  # pybind11 before 3: torch up to 2.8
        value = getattr(torch._C, f"_PYBIND11_{name}", None)
        if value is not None:
            flags.append(f'-DPYBIND11_{name}="{value}"')
    return flags


def find_oneccl(directory: Path) -> Path:
    """The directory that has oneCCL's headers and its static library for the CPU: `directory`, or one below it."""
    for candidate in [directory, *sorted(directory.glob("*.data/data"))]:
        if (candidate / HEADER).is_file() and (candidate / STATIC_LIBRARY).is_file():
            check_release(candidate)
            return candidate
    raise BuildError(f"{directory} has no {HEADER} and {STATIC_LIBRARY}: unpack the oneccl-devel wheel there")


def check_release(oneccl: Path) -> None:
    """Refuse a release, of the headers or of the library, whose private parts may differ."""
    config = (oneccl / HEADER).parent.joinpath("ccl/config.h").read_text()
    headers = ".".join(re.findall(r"define CCL_(?:MAJOR|MINOR|UPDATE)_VERSION +(\d+)", config))
    # CCL_PRODUCT_FULL: "Gold-2022.2.0 2026-10-11T 17:52:02Z (release/...)"
    found = re.search(rb"[A-Z][a-z]+-(\d+\.\d+\.\d+) \d{4}-\d\d-\d\dT", (oneccl / STATIC_LIBRARY).read_bytes())
    library = found[1].decode() if found else "of an unknown release"
    for what, release in (("headers are", headers), ("static library is", library)):
        if release != ONECCL_RELEASE:
            raise BuildError(
                f"oneCCL's {what} {release}, expected {ONECCL_RELEASE}: src/oneccl_private.hpp lists the private "
                "parts that the sources use and that have to be checked with another release"
            )


def find_hwloc(directories: list[Path]) -> Path:
    """The only shared library that oneCCL links; it opens libfabric at run time."""
    for directory in directories:
        if (directory / "libhwloc.so.15").is_file():
            return directory / "libhwloc.so.15"
    searched = ", ".join(str(directory) for directory in directories)
    raise BuildError(f"found no libhwloc.so.15 in {searched}: install tcmlib, or Debian's libhwloc15")


def run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    sys.stderr.write(result.stderr)
    if result.returncode != 0:
        raise BuildError(f"{command[0]} exited with {result.returncode}: {' '.join(command)}")


def compile_extension(oneccl: Path, hwloc: Path, scratch: Path, sanitizer: str | None) -> Path:
    """The shared object: stripped, unless it is compiled with a sanitizer."""
    import torch

    torch_root = Path(torch.__file__).parent
    include = [
        f"-I{oneccl / 'include'}",
        f"-I{HERE / 'src'}",
        *(f"-isystem{torch_root / part}" for part in ("include", "include/torch/csrc/api/include")),
        f"-isystem{sysconfig.get_path('include')}",
        f"-ffile-prefix-map={HERE}=bindings",
        f"-ffile-prefix-map={torch_root}=torch",
    ]
    extra = [f"-fsanitize={sanitizer}", *SANITIZER_FLAGS] if sanitizer else []
    common = ["g++", *FLAGS, *extra, *abi(torch), *include]
    header = scratch / "precompiled.hpp"
    header.write_text(PRECOMPILED)
    run([*common, "-x", "c++-header", str(header), "-o", f"{header}.gch"])

    def compile_one(source: Path) -> str:
        target = scratch / f"{source.stem}.o"
        prefix = [] if source.stem == "stand_ins" else ["-include", str(header)]
        run([*common, *prefix, "-c", str(source), "-o", str(target)])
        return str(target)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_one, sorted((HERE / "src").glob("*.cpp"))))
    extension = scratch / f"_backend{sysconfig.get_config_var('EXT_SUFFIX')}"
    library = scratch / STATIC_LIBRARY.name
    run(["objcopy", f"--weaken-symbol={REPLACED}", str(oneccl / STATIC_LIBRARY), str(library)])
    libraries = ["-Wl,--exclude-libs,ALL", str(library), str(hwloc)]
    torch_libraries = [f"-L{torch_root / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-lc10"]
    layout = ["-Wl,--gc-sections", "-Wl,--build-id=none", f"-Wl,-rpath,{RPATH}"]
    linked = [*objects, *libraries, *torch_libraries, "-ldl", "-lpthread"]
    run(["g++", "-shared", *extra, "-o", str(extension), *linked, *layout])
    if sanitizer is None:
        run(["strip", "--strip-unneeded", str(extension)])
    return extension


def pack(extension: Path, output: Path) -> Path:
    """The wheel, with fixed timestamps and a fixed order of files."""
    import torch

    version = torch.__version__.split("+")[0]
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    interpreter = f"cp{sys.version_info.major}{sys.version_info.minor}"
    tag = f"{interpreter}-{interpreter}-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
    info = f"{DISTRIBUTION}-{version}.dist-info"
    files = {
        f"{PACKAGE}/{path.relative_to(HERE / PACKAGE)}": path.read_bytes()
        for path in sorted((HERE / PACKAGE).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    files[f"{PACKAGE}/_version.py"] = (
        f'"""The torch that the extension was compiled against."""\n\n'
        f'TORCH_VERSION = "{version}"\n__version__ = TORCH_VERSION\n'
    ).encode()
    files[f"{PACKAGE}/{extension.name}"] = extension.read_bytes()
    files[f"{info}/METADATA"] = METADATA.format(name=DISTRIBUTION, version=version, python=python).encode()
    files[f"{info}/WHEEL"] = WHEEL.format(tag=tag).encode()
    record = "".join(f"{name},sha256={digest(content)},{len(content)}\n" for name, content in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()

    output.mkdir(parents=True, exist_ok=True)
    wheel = output / f"{DISTRIBUTION}-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
            archive.writestr(entry, content)
    return wheel


def digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--oneccl", type=Path, required=True, help="the unpacked oneccl-devel wheel")
    parser.add_argument("--output", type=Path, required=True, help="the directory for the wheel")
    parser.add_argument(
        "--libraries",
        type=Path,
        action="append",
        default=[],
        help="a directory to search for libhwloc.so.15 before the environment's lib and the system's",
    )
    parser.add_argument("--sanitize", choices=SANITIZERS, help="for tests/sanitize.py: compile with a sanitizer")
    arguments = parser.parse_args()
    try:
        oneccl = find_oneccl(arguments.oneccl)
        system = [Path(sys.prefix) / "lib", Path("/usr/lib/x86_64-linux-gnu")]
        hwloc = find_hwloc([*arguments.libraries, *system])
        with tempfile.TemporaryDirectory() as scratch:
            extension = compile_extension(oneccl, hwloc, Path(scratch), arguments.sanitize)
            print(pack(extension, arguments.output))
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
