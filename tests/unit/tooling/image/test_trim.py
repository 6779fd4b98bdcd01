"""images/scripts/trim.py with a small environment."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tooling.basis.paths import IMAGES

TRIM = IMAGES / "scripts" / "trim.py"
SP = "lib/python3.11/site-packages"

REMOVED = [
    "include/python3.11/Python.h",
    f"{SP}/torch/include/ATen/ATen.h",
    f"{SP}/numpy/_core/include/numpy/arrayobject.h",
    f"{SP}/pyarrow/includes/__init__.pxd",
    f"{SP}/pyarrow/src/arrow/python/api.cc",
    f"{SP}/grpc/_cython/_cygrpc/signer.h",
    f"{SP}/some/vendored/array.hpp",
    f"{SP}/numpy/__init__.pxd",
    f"{SP}/torch/share/cmake/Torch/TorchConfig.cmake",
    "lib/cmake/oneccl/config.cmake",
    "lib/pkgconfig/impi.pc",
    f"{SP}/torch/test/data",
    f"{SP}/torch/bin/test_api",
    f"{SP}/torch/bin/protoc-3.13.0.0",
    f"{SP}/torch/lib/libsome_test.so",
    f"{SP}/torch/lib/libbackend_with_compiler.so",
    f"{SP}/torch/lib/libaoti_custom_ops.so",
    f"{SP}/sklearn/tree/tests/test_tree.py",
    f"{SP}/numpy/_core/tests/test_array.py",
    f"{SP}/torch/lib/libdnnl.a",
    "lib/libmpi.a",
    "lib/libmpi.dbg",
    "opt/compiler/include/omp.h",
    "lib/libomptarget.rtl.level0.so",
    "lib/libarcher.so",
    "lib/libiompstubs5.so",
    "lib/libiomp5_db.so",
    "lib/libur_adapter_opencl.so.0",
    "lib/libtcm_debug.so.1",
    "bin/IMB-MPI1",
    "bin/fi_info",
    "bin/impi_info",
]
KEPT = [
    "bin/python",
    "bin/mpirun",
    "lib/libiomp5.so",
    "lib/libtcm.so.1",
    "lib/libmpi.so.12",
    "lib/libfabric/libsockets-fi.so",
    f"{SP}/torch/__init__.py",
    f"{SP}/torch/lib/libtorch_cpu.so",
    f"{SP}/torch/bin/torch_shm_manager",
    f"{SP}/torch/testing/__init__.py",
    f"{SP}/sklearn/tree/tests.py",
    f"{SP}/numpy/_core/__init__.py",
    f"{SP}/numpy/_core/tests/_natype.py",
    f"{SP}/datasets/utils/metadata.txt",
]


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    for number, name in enumerate(REMOVED + KEPT):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number]) * 1000)
    (tmp_path / "lib64").symlink_to("lib")
    return tmp_path


def trim(venv: Path) -> str:
    argv = [sys.executable, str(TRIM), str(venv)]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout


def test_unused_files_are_removed_and_others_stay(venv: Path) -> None:
    trim(venv)
    left = {str(path.relative_to(venv)) for path in venv.rglob("*") if path.is_file()}
    assert {name for name in left if not name.startswith("lib64")} == set(KEPT)


def test_every_rule_matches_a_file_of_this_test(venv: Path) -> None:
    spec = importlib.util.spec_from_file_location("trim", TRIM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    idle = [pattern for pattern in module.UNUSED if not list(venv.glob(pattern.replace("SP/", f"{SP}/")))]
    assert idle == []


def test_the_saved_size_is_printed_for_each_rule(venv: Path) -> None:
    (venv / "lib/libmpi.a").write_bytes(b"x" * 2_500_000)
    assert re.search(r"trim: +2\.5 MB  \*\*/\*\.a  \(static libraries\)", trim(venv))


def test_trimming_twice_is_the_same_as_trimming_once(venv: Path) -> None:
    trim(venv)
    before = sorted(venv.rglob("*"))
    assert "0.0 MB" in trim(venv)
    assert sorted(venv.rglob("*")) == before


def test_copies_of_one_library_become_links_to_the_longest_name(venv: Path) -> None:
    for name in ("libfoo.so", "libfoo.so.1", "libfoo.so.1.2.3"):
        (venv / "lib" / name).write_bytes(b"the same")
    (venv / "lib/libother.so").write_bytes(b"another")
    (venv / "lib/libdangling.so").symlink_to("nowhere")
    trim(venv)
    links = {path.name: str(path.readlink()) for path in (venv / "lib").glob("lib*.so*") if path.is_symlink()}
    expected = {"libfoo.so": "libfoo.so.1.2.3", "libfoo.so.1": "libfoo.so.1.2.3", "libdangling.so": "nowhere"}
    assert links == expected
    assert (venv / "lib/libfoo.so").read_bytes() == b"the same"
