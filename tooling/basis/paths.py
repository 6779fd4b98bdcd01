"""The folders of a checkout. All files that the stack writes are in .cache/, except .venv/."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "images"
COMPOSE = ROOT / "compose"
CACHE = ROOT / ".cache"


def shown(path: Path) -> Path:
    """The path as messages show it: from the checkout's root, if it is in the checkout."""
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
