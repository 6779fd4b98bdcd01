"""Fetches a pin's locked wheels on the host, so that an image installs them offline.

The folder .cache/wheels/<pin> holds exactly the lock's wheels when `fetch` returns: each was checked against its
sha256, whatever is not the lock's was deleted, and nothing partial is ever there.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from tooling.basis import files
from tooling.basis.errors import UsageError
from tooling.basis.locking import alone
from tooling.basis.paths import CACHE
from tooling.pins.pin import Pin
from tooling.wheels import locks, pip
from tooling.wheels.resolve import LockedWheel

WHEELS = CACHE / "wheels"

Say = Callable[[str], None]


def fetch(pin: Pin, say: Say, folder: Path | None = None) -> Path:
    """Makes the pin's wheel folder complete and returns it. Raises UsageError with the cause in one line."""
    folder = folder or WHEELS / pin.name
    locked = {**locks.read(pin), **locks.read_build(pin)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = folder.parent / f".{folder.name}.lock"
        with alone(lock, lambda: say(f"waiting for another ./inv that fetches wheels for pin {pin.name}")):
            _complete(pin, locked, folder, say)
    except OSError as error:
        raise UsageError(
            f"fetching wheels for pin {pin.name} into {_shown(folder)}: {error.strerror or error}; "
            "no partial file was kept; fix the cause and run the same command again"
        ) from None
    return folder


def _complete(pin: Pin, locked: dict[str, LockedWheel], folder: Path, say: Say) -> None:
    for partial in folder.parent.glob(_partial_prefix(folder) + "*"):
        shutil.rmtree(partial)  # left by a fetch that was killed
    missing = _missing(folder, locked, say)
    if not missing:
        return
    say(f"fetching {len(missing)} of {len(locked)} wheels into {_shown(folder)}")
    common = [wheel for wheel in missing if wheel.name not in pin.sources]
    if common:
        _download(pin, common, folder, say, indexes=[[]])
    for source in dict.fromkeys(pin.sources.values()):  # what the host's indexes may lack
        special = [wheel for wheel in missing if pin.sources.get(wheel.name) == source]
        if special:
            _download(pin, special, folder, say, indexes=[[], source.alone])


def _partial_prefix(folder: Path) -> str:
    return f".partial-{folder.name}-"


def verify(path: Path, wheel: LockedWheel) -> bool:
    """Whether the file has the lock's sha256; a file that has not is deleted."""
    if files.sha256_of(path) == wheel.sha256:
        return True
    path.unlink()
    return False


def _missing(folder: Path, locked: dict[str, LockedWheel], say: Say) -> list[LockedWheel]:
    missing = dict(locked)
    for path in sorted(folder.iterdir()):
        wheel = _locked_as(path, locked)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif wheel is None:
            path.unlink()
        elif verify(path, wheel):
            missing.pop(wheel.name, None)
        else:
            say(f"{path.name} does not have the lock's sha256: deleted, fetching it again")
    return list(missing.values())


def _locked_as(path: Path, locked: dict[str, LockedWheel]) -> LockedWheel | None:
    try:
        name, version, _, _ = parse_wheel_filename(path.name)
    except InvalidWheelFilename:
        return None
    wheel = locked.get(name)
    return wheel if wheel and Version(wheel.version) == version else None


def _download(pin: Pin, wheels: Iterable[LockedWheel], folder: Path, say: Say, indexes: list[list[str]]) -> None:
    """Downloads `wheels` from the first of `indexes` (pip options) that has them all."""
    locked = {wheel.name: wheel for wheel in wheels}
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=_partial_prefix(folder)) as scratch:
        lock = Path(scratch) / "lock.txt"
        lock.write_text("".join(f"{w.name}=={w.version} --hash=sha256:{w.sha256}\n" for w in locked.values()))
        arguments = ["download", "--no-deps", "--require-hashes", "--requirement", str(lock)]
        arguments += ["--dest", str(Path(scratch) / "wheels")]
        for index in indexes:
            result = pip.run(
                [*arguments, *index],
                pin=pin,
                scratch=Path(scratch),
                heartbeat=lambda: say(_progress(Path(scratch))),
            )
            if result.returncode == 0:
                break
        else:
            raise pip.failure(f"fetching {', '.join(locked)} for pin {pin.name}", result)
        for path in sorted((Path(scratch) / "wheels").iterdir()):
            wheel = _locked_as(path, locked)
            if wheel is None or not verify(path, wheel):
                raise UsageError(f"{path.name} does not match the lock of pin {pin.name}: deleted")
            path.replace(folder / path.name)


def _progress(scratch: Path) -> str:
    size = 0
    for root, _, names in os.walk(scratch):
        for name in names:
            try:
                size += (Path(root) / name).stat().st_size
            except FileNotFoundError:  # pip moved it between the listing and the look
                continue
    return f"  {size / 1e6:.0f} MB so far"


def _shown(path: Path) -> str:
    try:
        return str(path.relative_to(CACHE.parent))
    except ValueError:
        return str(path)
