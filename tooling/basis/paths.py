"""The folders of a checkout. `./inv` writes to .cache/, .venv/, images/status.json and images/locks/."""

import errno
from pathlib import Path

from cpu_train_stack.cli.errors import FULL_DISK

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "images"
COMPOSE = ROOT / "compose"
CACHE = ROOT / ".cache"
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
_UNUSABLE = (errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG)


def shown(path: Path) -> Path:
    """The path as messages show it: from the checkout's root, if it is in the checkout."""
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def explain_error(error: OSError) -> str | None:
    """One line for the error of a full disk, or of a path that this user cannot use. None for other errors."""
    if error.errno in FULL_DISK:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}: free some space, and run the same command again"
    if error.errno not in (*_DENIED, *_UNUSABLE) or not isinstance(error.filename, str | Path):
        return None
    path = Path(error.filename).absolute()
    if error.errno in _DENIED and any(path.is_relative_to(folder) for folder in (CACHE, IMAGES)):
        return (
            f"{shown(path)}: {error.strerror}, expected a checkout that you can write to: become its owner "
            f"(sudo chown -R $USER '{ROOT}'), or use a copy of it"
        )
    return f"{error.filename}: {error.strerror}: choose a path that you can use, or change its permissions"
