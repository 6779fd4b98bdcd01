"""Finds the checkpoint to resume from. A checkpoint that was only half written is never chosen.

transformers writes into checkpoint-N directly: weights, optimizer, scheduler, random states, and
trainer_state.json last. A process that is killed in between leaves a folder that must not be used.
No torch: every file is checked by its own end (safetensors' length, a zip archive's directory, JSON's syntax).
"""

from __future__ import annotations

import json
import re
import struct
import zipfile
from pathlib import Path
from typing import Any

from entrypoints.train.model import adapters

_NAME = re.compile(r"checkpoint-(\d+)")
_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"


def step_of(path: Path) -> int:
    """The step in a checkpoint's name, -1 if it is not named like one."""
    found = _NAME.fullmatch(path.name)
    return int(found.group(1)) if found else -1


def all_in(folder: Path) -> list[Path]:
    """Checkpoint folders, oldest step first, whole or not."""
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if path.is_dir() and step_of(path) >= 0), key=step_of)


def fault(path: Path) -> str | None:
    """What is missing or broken in a checkpoint; None if training can go on from it."""
    if not path.is_dir():
        return "there is no such folder"
    state = _json(path / "trainer_state.json")
    if state is None or "global_step" not in state:
        return "trainer_state.json is missing or broken"
    index = _json(path / _INDEX)
    shards = (
        sorted(set(index.get("weight_map", {}).values()))
        if index
        else [adapters.WEIGHTS[0] if adapters.is_adapter(path) else _WEIGHTS]
    )
    for shard in shards:
        if not safetensors_is_whole(path / shard):
            return f"{shard} is missing or broken"
    for name in ("optimizer.pt", "scheduler.pt"):
        if not zipfile.is_zipfile(path / name):
            return f"{name} is missing or broken"
    return None


def last_whole(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that can be used, and one line for each newer one that cannot."""
    notes: list[str] = []
    for path in reversed(all_in(folder)):
        found = fault(path)
        if found is None:
            return path, notes
        notes.append(f"{path.name} is passed over: {found}")
    return None, notes


def ranks_of(path: Path) -> int:
    """How many ranks wrote their random states into a checkpoint."""
    return len(list(path.glob("rng_state*.pth")))


def safetensors_is_whole(path: Path) -> bool:
    """Whether the file is as long as its header says.

    Format: 8 bytes header length, little endian; the header as JSON with data_offsets; the data.
    """
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > path.stat().st_size:
                return False
            header = json.loads(file.read(length))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        return path.stat().st_size == 8 + int(length) + max(map(int, ends), default=0)
    except (OSError, struct.error, ValueError, KeyError, TypeError, AttributeError):
        return False


def _json(path: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None
