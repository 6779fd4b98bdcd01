"""Small real wheels, a package index, and a pin with a lock, for tests of fetches."""

import base64
import hashlib
import zipfile
from collections.abc import Iterable
from pathlib import Path

from tooling.pins.pin import DEBIAN_RELEASES, Ccl, Pin, Source


def make_wheel(folder: Path, name: str, version: str, payload: bytes = b"", requires: Iterable[str] = ()) -> Path:
    """A pure wheel that pip accepts. The same arguments give the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    members = {
        f"{name}/__init__.py": b"",
        f"{name}/payload": payload,
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [f"{path},sha256={_record_digest(data)},{len(data)}" for path, data in members.items()]
    members[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in members.items():
            archive.writestr(zipfile.ZipInfo(member), data)
    return path


def make_simple_index(folder: Path, wheels: Iterable[Path]) -> str:
    """A package index (PEP 503) as files; returns its URL."""
    for wheel in wheels:
        page = folder / "simple" / wheel.name.split("-")[0].replace("_", "-")
        page.mkdir(parents=True, exist_ok=True)
        (page / wheel.name).write_bytes(wheel.read_bytes())
        (page / "index.html").write_text(f'<!DOCTYPE html><a href="{wheel.name}">{wheel.name}</a>')
    (folder / "simple").mkdir(parents=True, exist_ok=True)
    return (folder / "simple").as_uri()


def make_pin(packages: dict[str, str], index: str = "https://index.invalid/simple") -> Pin:
    """A pin that is not in versions.toml. `write_lock` writes its lock."""
    return Pin(
        name="tiny",
        debian=DEBIAN_RELEASES[12],
        base="debian:bookworm-slim@sha256:" + "0" * 64,
        python="3.11",
        tcmalloc_package="libtcmalloc-minimal4",
        ccl=Ccl.BINDINGS,
        oneccl="2022.2.0",
        packages=packages,
        build_packages={},
        sources={"torch": Source(index)},
    )


def write_lock(locks: Path, wheels: Iterable[Path]) -> Path:
    """The locks of the pin `tiny`; nothing is compiled into it."""
    locks.mkdir(parents=True, exist_ok=True)
    lines = []
    for wheel in wheels:
        name, version = wheel.name.split("-")[:2]
        sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
        lines.append(f"{name.replace('_', '-')}=={version} \\\n    --hash=sha256:{sha256}\n")
    (locks / "tiny-build.txt").write_text("# written by a test\n", encoding="utf-8")
    path = locks / "tiny.txt"
    path.write_text("# written by a test\n" + "".join(lines), encoding="utf-8")
    return path


def _record_digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
