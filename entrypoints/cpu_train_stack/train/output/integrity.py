"""Whether the files of a checkpoint are whole: what writes them, or the disk, may fail. Torch-free."""

from __future__ import annotations

import json
import math
import re
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

from cpu_train_stack.train.model import adapters

RANDOM_STATES = "rng_state*.pth"
_CONFIG = "config.json"
_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
# The numbers of trainer_state.json that decide where the training continues.
_STATE_NUMBERS = ("global_step", "max_steps", "epoch")


def fault(path: Path, thorough: bool = False) -> str | None:
    """The first missing or broken part of a checkpoint, None if the checkpoint is complete.

    `thorough`: also compare the contents of optimizer, scheduler and random states with their checksums, which
    torch does not. Weights have none.
    """
    if not path.is_dir():
        return "the folder does not exist"
    if not _is_state(read_json(path / "trainer_state.json")):
        return "trainer_state.json is missing or broken"
    is_adapter = adapters.is_adapter(path)
    for name in (_CONFIG, adapters.CONFIG, _INDEX):
        is_needed = name == _CONFIG and not is_adapter
        if (is_needed or (path / name).exists()) and read_json(path / name) is None:
            return f"{name} is missing or broken" if is_needed else f"{name} is broken"
    index = read_json(path / _INDEX)
    if index is None:
        shards = [adapters.WEIGHTS[0] if is_adapter else _WEIGHTS]
    elif isinstance(names := index.get("weight_map"), dict) and all(
        isinstance(name, str) for name in names.values()
    ):
        shards = sorted({*names.values()})
    else:
        return f"{_INDEX} is broken"
    for shard in shards:
        if not is_complete_safetensors(path / shard):
            return f"{shard} is missing or broken"
    # A checkpoint may have no random states: then Trainer draws new ones.
    random_states = sorted(found.name for found in path.glob(RANDOM_STATES))
    for name in ("optimizer.pt", "scheduler.pt", *random_states):
        if not _is_complete_archive(path / name, thorough):
            return f"{name} is missing or broken"
    return None


def is_complete_safetensors(path: Path) -> bool:
    """Whether the file has the length that its header states.

    Format: 8 bytes header length, little endian; the header as JSON with data_offsets; the data.
    """
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > path.stat().st_size:
                return False
            header = json.loads(file.read(length))
        end = 0  # the tensors follow each other without gaps
        for begin, end_of_next in sorted(
            _data_of(entry) for name, entry in header.items() if name != "__metadata__"
        ):
            if begin != end:
                return False
            end = end_of_next
        return path.stat().st_size == 8 + int(length) + end
    except (OSError, struct.error, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return False


def _data_of(entry: Any) -> tuple[int, int]:
    """Where a tensor's data begin and end. Raises ValueError if shape and type need another number of bytes."""
    begin, end = map(int, entry["data_offsets"])
    size = re.fullmatch(r"[A-Z]+?(\d+)(_\w+)?|BOOL", entry["dtype"])
    if size is None or end - begin != math.prod(entry["shape"]) * int(size[1] or 8) // 8:
        raise ValueError("a broken entry")
    return begin, end


def _is_state(state: dict[str, Any] | None) -> bool:
    """Whether this may be the contents of trainer_state.json."""
    if state is None or type(state.get("global_step")) is not int or state["global_step"] < 0:
        return False
    numbers = [state[name] for name in _STATE_NUMBERS if state.get(name) is not None]
    return all(type(number) in (int, float) and math.isfinite(number) for number in numbers) and isinstance(
        state.get("log_history", []), list
    )


def _is_complete_archive(path: Path, thorough: bool) -> bool:
    """Whether torch.load can read the file: a zip archive with a pickle. `thorough`: compare the checksums."""
    try:
        with zipfile.ZipFile(path) as archive:
            has_pickle = any(name.endswith("data.pkl") for name in archive.namelist())
            return has_pickle and (not thorough or archive.testzip() is None)
    # NotImplementedError, RuntimeError: a broken entry seems to be compressed in an unknown way, or encrypted.
    except (OSError, ValueError, zipfile.BadZipFile, EOFError, zlib.error, struct.error, RuntimeError):
        return False


def read_json(path: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None
