"""The folders of a checkout. All files that the stack writes are in .cache/, except .venv/."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "images"
COMPOSE = ROOT / "compose"
CACHE = ROOT / ".cache"
