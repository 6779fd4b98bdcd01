"""Finding libraries by soname, composing LD_PRELOAD, and checking that they were loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cpu_train_stack.machine.processes import mapped_files
from cpu_train_stack.plan.preload import compose, find, locate, not_loaded, split
from tests.unit.entrypoints import ROOT

CACHE = """\
2 libs found in cache `/etc/ld.so.cache'
\tlibtcmalloc_minimal.so.4 (libc6) => {folder}/x32/libtcmalloc_minimal.so.4
\tlibtcmalloc_minimal.so.4 (libc6,x86-64) => {folder}/x/libtcmalloc_minimal.so.4
\tlibtcmalloc_minimal_debug.so.4 (libc6,x86-64) => {folder}/x/libtcmalloc_minimal_debug.so.4
"""


def touch(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return str(path)


def test_the_python_environments_own_library_comes_first(tmp_path: Path) -> None:
    own = touch(tmp_path / "venv" / "lib" / "libtcmalloc_minimal.so.4")
    touch(tmp_path / "x" / "libtcmalloc_minimal.so.4")
    assert locate("libtcmalloc_minimal.so.4", str(tmp_path / "venv"), CACHE.format(folder=tmp_path)) == own


def test_the_linkers_cache_is_searched_for_the_64_bit_library_of_exactly_this_name(tmp_path: Path) -> None:
    wanted = touch(tmp_path / "x" / "libtcmalloc_minimal.so.4")
    touch(tmp_path / "x32" / "libtcmalloc_minimal.so.4")
    touch(tmp_path / "x" / "libtcmalloc_minimal_debug.so.4")
    found = locate("libtcmalloc_minimal.so.4", str(tmp_path / "venv"), CACHE.format(folder=tmp_path))
    assert found == wanted


def test_a_cache_entry_without_its_file_is_skipped(tmp_path: Path) -> None:
    cache = f"\tlibnowhere.so.4 (libc6,x86-64) => {tmp_path}/libnowhere.so.4\n"
    assert locate("libnowhere.so.4", str(tmp_path), cache) is None
    touch(tmp_path / "libnowhere.so.4")
    assert locate("libnowhere.so.4", str(tmp_path), cache) == str(tmp_path / "libnowhere.so.4")


def test_this_machines_c_library_is_found() -> None:
    path = locate("libc.so.6")
    assert path is not None
    assert Path(path).is_file()


def test_both_libraries_are_found_and_the_reasons_name_them() -> None:
    found = find({}, lambda soname: f"/lib/{soname}")
    assert found.paths == ("/lib/libtcmalloc_minimal.so.4", "/lib/libiomp5.so")
    assert len(found.reasons) == 2
    assert not found.warnings


def test_the_full_allocator_replaces_a_missing_minimal_one() -> None:
    found = find({}, lambda soname: None if "minimal" in soname else f"/lib/{soname}")
    assert found.paths[0] == "/lib/libtcmalloc.so.4"


def test_a_missing_library_is_a_warning_with_the_fix() -> None:
    found = find({}, lambda _: None)
    assert found.paths == ()
    assert "install the Debian package libtcmalloc-minimal4" in found.warnings[0]
    assert "intel-openmp" in found.warnings[1]


@pytest.mark.parametrize("name", ["libjemalloc.so.2", "libtcmalloc.so.4.5.9", "libmimalloc.so"])
def test_a_users_own_allocator_stays_the_only_one(tmp_path: Path, name: str) -> None:
    other, own = touch(tmp_path / "libother.so"), touch(tmp_path / name)
    found = find({"LD_PRELOAD": f"{other} {own}"}, lambda soname: f"/lib/{soname}")
    assert found.paths == ("/lib/libiomp5.so",)
    assert any(own in reason for reason in found.reasons)
    assert not found.warnings


def test_a_guides_path_that_does_not_exist_is_a_warning_and_replaces_nothing(tmp_path: Path) -> None:
    absent = f"{tmp_path}/libtcmalloc.so:{tmp_path}/libiomp5.so"
    found = find({"LD_PRELOAD": absent}, lambda soname: f"/lib/{soname}")
    assert found.paths == ("/lib/libtcmalloc_minimal.so.4", "/lib/libiomp5.so")
    assert [warning.split(",")[0] for warning in found.warnings] == [
        f"LD_PRELOAD has {path}" for path in absent.split(":")
    ]


def test_a_path_that_only_the_linker_can_resolve_counts_as_existing() -> None:
    found = find({"LD_PRELOAD": "/usr/$LIB/libtcmalloc.so.4"}, lambda soname: f"/lib/{soname}")
    assert (found.paths, found.warnings) == (("/lib/libiomp5.so",), ())


def test_a_users_own_openmp_stays_the_only_one() -> None:
    assert find({"LD_PRELOAD": "libgomp.so.1"}, lambda soname: f"/lib/{soname}").paths == (
        "/lib/libtcmalloc_minimal.so.4",
    )


def test_ld_preload_keeps_the_users_order_and_nothing_twice() -> None:
    assert compose("/b.so:/a.so  /b.so", ["/a.so", "/c.so"]) == "/b.so:/a.so:/c.so"
    assert compose("", ["/c.so"]) == "/c.so"
    assert split(" :/a.so::/b.so ") == ["/a.so", "/b.so"]


def _verify_in_a_process(preload: str, asked: str) -> str:
    code = "import sys; from cpu_train_stack.plan.preload import verify; print(verify([sys.argv[1]]))"
    environ = {**os.environ, "LD_PRELOAD": preload, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code, asked], env=environ, capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


def test_a_real_preload_counts_as_loaded_through_its_symbolic_link(tmp_path: Path) -> None:
    library = locate("libBrokenLocale.so.1") or locate("libm.so.6")
    assert library is not None
    link = tmp_path / "liblink.so"
    link.symlink_to(library)
    assert _verify_in_a_process(str(link), str(link)) == "[]"


def test_a_preload_that_the_linker_ignored_is_a_warning(tmp_path: Path) -> None:
    broken = touch(tmp_path / "libbroken.so")
    assert "has not loaded it" in _verify_in_a_process(broken, broken)


def test_a_path_with_spaces_in_the_maps_is_read_completely(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    library = touch(tmp_path / "a b" / "lib.so")
    maps.write_text(
        f"7f00-7f01 r-xp 00000000 08:01 12345                      {library}\n7f02-7f03 rw-p 0 00:00 0\n"
    )
    assert not_loaded([library, library + ".1"], mapped_files(maps)) == [library + ".1"]
