"""The release of oneCCL that build.py accepts."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = Path(__file__).parents[3] / "bindings" / "build.py"


@pytest.fixture(scope="module")
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bindings_build", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def unpacked(folder: Path, headers: str, library: str) -> Path:
    """A folder like the unpacked wheel, of these releases."""
    config = folder / "include/oneapi/ccl/config.h"
    config.parent.mkdir(parents=True)
    (config.parent.parent / "ccl.hpp").touch()
    names = zip(("MAJOR", "MINOR", "UPDATE"), headers.split("."), strict=True)
    config.write_text("".join(f"#define CCL_{name}_VERSION           {number}\n" for name, number in names))
    archive = folder / "lib/ccl/cpu/lib/libccl.a"
    archive.parent.mkdir(parents=True)
    archive.write_bytes(b"!<arch>\n\0Gold-" + library.encode() + b" 2026-10-11T 17:52:02Z (release/bba7f60)\0")
    return folder


def test_the_known_release_of_oneccl_is_accepted(build: ModuleType, tmp_path: Path) -> None:
    wheel = unpacked(tmp_path, "2022.2.0", "2022.2.0")
    assert build.find_oneccl(wheel) == wheel


@pytest.mark.parametrize(
    ("headers", "library", "found"),
    [
        pytest.param("2022.3.0", "2022.3.0", "headers are 2022.3.0", id="both"),
        pytest.param("2022.2.0", "2022.2.1", "library is 2022.2.1", id="library"),
        pytest.param("2022.2.0", "", "unknown", id="no-release"),
    ],
)
def test_another_release_of_oneccl_is_refused(
    build: ModuleType, tmp_path: Path, headers: str, library: str, found: str
) -> None:
    with pytest.raises(build.BuildError) as caught:
        build.find_oneccl(unpacked(tmp_path, headers, library))
    message = str(caught.value)
    assert found in message
    assert "expected 2022.2.0" in message
    assert "oneccl_private.hpp" in message
    assert (SOURCE.parent / "src" / "oneccl_private.hpp").is_file()
