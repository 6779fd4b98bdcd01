"""Downloads a pin's locked wheels on the host, so that an image installs them offline.

When `fetch` returns, the folder .cache/wheels/<pin> holds exactly the wheels of the lock, each with the sha256 of
the lock. Downloads go to a separate folder first, so that this folder never holds a partial file.
"""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from cpu_train_stack.cli import files
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.say import say
from tooling.basis.paths import CACHE, shown
from tooling.pins.pin import Pin
from tooling.wheels import locks, pip
from tooling.wheels.resolve import LockedWheel

WHEELS = CACHE / "wheels"
# Of os.link on file systems without hard links, and on those that only some may use.
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK}


def fetch(pin: Pin, folder: Path | None = None) -> Path:
    """Complete the pin's wheel folder and return its path. Raises UsageError with the cause in one line.

    A user's own packages are not in this folder, but in that of `fetch_added`.
    """
    lock = {**locks.read(pin), **locks.read_build(pin)}
    return _fetch(pin.without_added, lock, folder or WHEELS / pin.without_added.name)


def fetch_added(pin: Pin) -> Path:
    """The same for a user's own packages."""
    return _fetch(pin, locks.read_added(pin), WHEELS / pin.name)


def remove(pin: Pin) -> None:
    """Delete the wheels that `fetch` and `fetch_added` downloaded. The next build that needs them fetches them."""
    for name in {pin.name, pin.without_added.name}:
        folder = WHEELS / name
        if folder.is_dir():
            with _locked(pin, folder):
                shutil.rmtree(folder)


def _fetch(pin: Pin, lock: dict[str, LockedWheel], folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(pin, folder):
            _complete(pin, lock, folder)
    except OSError as error:
        raise UsageError(
            f"fetching wheels for pin {pin.name} into {shown(folder)} failed: {error.strerror or error}; "
            "no partial file was kept; fix the cause and run the same command again"
        ) from None
    return folder


def _locked(pin: Pin, folder: Path) -> AbstractContextManager[None]:
    return files.locked(
        folder.parent / f".{folder.name}.lock",
        lambda: say(f"waiting for another ./inv that is fetching wheels for pin {pin.name}"),
    )


def _complete(pin: Pin, lock: dict[str, LockedWheel], folder: Path) -> None:
    for partial in folder.parent.glob(_partial_prefix(folder) + "*"):
        shutil.rmtree(partial)  # left by a fetch that was killed
    missing = _missing(folder, lock)
    reused = [wheel for wheel in missing if _reuse(wheel, folder)]
    missing = [wheel for wheel in missing if wheel not in reused]
    if reused:
        say(f"reusing {len(reused)} wheels that another pin has")
    if not missing:
        return
    say(f"fetching {len(missing)} of {len(lock)} wheels into {shown(folder)}")
    common = [wheel for wheel in missing if wheel.name not in pin.sources]
    if common:
        _download(pin, common, folder, indexes=[[]])
    for source in dict.fromkeys(pin.sources.values()):
        special = [wheel for wheel in missing if pin.sources.get(wheel.name) == source]
        if special:  # the host's indexes may lack these wheels
            _download(pin, special, folder, indexes=[[], source.only_option])


def _partial_prefix(folder: Path) -> str:
    """Ends with "@", which no pin's name contains, because one pin's name can be a prefix of another's."""
    return f".partial-{folder.name}@"


def _missing(folder: Path, lock: dict[str, LockedWheel]) -> list[LockedWheel]:
    """The wheels to download. Deletes files that are not in the lock and wheels with a wrong sha256."""
    missing = dict(lock)
    for path in sorted(folder.iterdir()):
        wheel = _find_in_lock(path, lock)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif wheel is None:
            path.unlink()
        elif files.sha256_of(path) == wheel.sha256:
            missing.pop(wheel.name, None)
        else:
            path.unlink()
            say(f"deleted {path.name}, whose sha256 differs from the lock: fetching it again")
    return list(missing.values())


def _reuse(wheel: LockedWheel, folder: Path) -> bool:
    """Link the wheel from the folder of another pin, if one has it with the sha256 of the lock.

    Copy it on file systems without hard links, such as exFAT.
    """
    for path in sorted(folder.parent.glob(f"[!.]*/*-{wheel.version}-*.whl")):
        try:
            if _find_in_lock(path, {wheel.name: wheel}) and files.sha256_of(path) == wheel.sha256:
                try:
                    os.link(path, folder / path.name)
                except OSError as error:
                    if error.errno not in _NO_LINKS:
                        raise
                    part = folder / f".{path.name}.{os.getpid()}"
                    shutil.copyfile(path, part)
                    part.replace(folder / path.name)
                return True
        except FileNotFoundError:  # another ./inv deleted it
            continue
    return False


def _find_in_lock(path: Path, lock: dict[str, LockedWheel]) -> LockedWheel | None:
    try:
        name, version, _, _ = parse_wheel_filename(path.name)
    except InvalidWheelFilename:
        return None
    wheel = lock.get(name)
    return wheel if wheel and Version(wheel.version) == version else None


def _download(pin: Pin, wheels: Iterable[LockedWheel], folder: Path, indexes: list[list[str]]) -> None:
    """Download `wheels` from the first of `indexes` (pip options) that has all of them."""
    lock = {wheel.name: wheel for wheel in wheels}
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=_partial_prefix(folder)) as name:
        scratch = Path(name)
        requirements = scratch / "lock.txt"
        requirements.write_text(
            pin.added.search + "".join(f"{w.name}=={w.version} --hash=sha256:{w.sha256}\n" for w in lock.values()),
            encoding="utf-8",
        )
        arguments = ["download", "--no-deps", "--require-hashes", "--requirement", str(requirements)]
        arguments += ["--dest", str(scratch / "wheels")]
        for index in indexes:
            result = pip.run(
                [*arguments, *index], pin=pin, scratch=scratch, heartbeat=lambda: say(_progress(scratch))
            )
            if result.returncode == 0:
                break
        else:
            raise pip.failure(f"fetching {', '.join(lock)} for pin {pin.name}", result)
        for path in sorted((scratch / "wheels").iterdir()):
            wheel = _find_in_lock(path, lock)
            if wheel is None or files.sha256_of(path) != wheel.sha256:
                raise UsageError(f"{path.name} does not match the lock of pin {pin.name}: deleted")
            path.replace(folder / path.name)


def _progress(scratch: Path) -> str:
    size = 0
    for root, _, names in os.walk(scratch):
        for name in names:
            try:
                size += (Path(root) / name).stat().st_size
            except FileNotFoundError:  # pip moved the file after os.walk listed it
                continue
    return f"  {size / 1e6:.0f} MB so far"
