"""The folders of a checkout. `./inv` writes to .cache/, .venv/, images/status.json and images/locks/."""

import errno
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "images"
COMPOSE = ROOT / "compose"
CACHE = ROOT / ".cache"


def shown(path: Path) -> Path:
    """The path as messages show it: from the checkout's root, if it is in the checkout."""
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def not_writable(error: OSError) -> str | None:
    """One line for an error that denies access to a file that the stack keeps in the checkout. None for others."""
    if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS) or not isinstance(error.filename, str | Path):
        return None
    path = Path(error.filename).absolute()
    if not any(path.is_relative_to(folder) for folder in (CACHE, IMAGES)):
        return None
    return (
        f"{shown(path)}: {error.strerror}, expected a checkout that you can write to: become its owner "
        f"(sudo chown -R $USER '{ROOT}'), or use a copy of it"
    )


def disk_full(error: OSError) -> str | None:
    """One line for an error of a full disk or an exceeded quota. None for others."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return None
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror}: free some space, and run the same command again"
