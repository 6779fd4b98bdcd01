"""Whether the files of a checkpoint are whole: what writes them, or the disk, may fail. Torch-free."""

from __future__ import annotations

import json
import math
import pickle
import re
import struct
import zipfile
from pathlib import Path
from typing import IO, Any

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.model import adapters

RANDOM_STATES = "rng_state*.pth"
STATE = "trainer_state.json"
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
        is_link = path.is_symlink() and not path.exists()
        exists = "not a folder" if path.exists() else "the folder does not exist"
        return "it is a link to a folder that does not exist" if is_link else exists
    if not _is_state(read_json(path / STATE)):
        return f"{STATE} is missing or broken"
    is_adapter = adapters.is_adapter(path)
    for name in (_CONFIG, adapters.CONFIG, _INDEX):
        is_needed = name == _CONFIG and not is_adapter
        if (is_needed or (path / name).exists()) and read_json(path / name) is None:
            return f"{name} is missing or broken" if is_needed else f"{name} is broken"
    index = read_json(path / _INDEX)
    names = {} if index is None else index.get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        return f"{_INDEX} is broken"
    shards = {*names.values()} or {adapters.WEIGHTS[0] if is_adapter else _WEIGHTS}
    for shard in sorted(shards):
        tensors = tensors_of(path / shard)
        if tensors is None:
            return f"{shard} is missing or broken"
        lacking = next((name for name, owner in names.items() if owner == shard and name not in tensors), None)
        if lacking is not None:
            return f"{shard} lacks the tensor '{lacking}'"
    # A checkpoint may have no random states: then Trainer draws new ones.
    random_states = sorted(found.name for found in path.glob(RANDOM_STATES))
    for name in ("optimizer.pt", "scheduler.pt", *random_states):
        if not _is_complete_archive(path / name, thorough):
            return f"{name} is missing or broken"
    return None


def tensors_of(path: Path) -> dict[str, tuple[int, ...]] | None:
    """The shapes of the file's tensors by name. None if the file is broken or cannot be read."""
    try:
        return read_tensors(path)
    except (OSError, ValueError):
        return None


def read_tensors(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of the file's tensors by name. Raises ValueError if it has not the length that its header states.

    Format: 8 bytes header length, little endian; the header as JSON with data_offsets; the data.
    """
    if not path.is_file():  # a FIFO would block
        raise ValueError("no file")
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > path.stat().st_size:
                raise ValueError("the file ends in its header")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        end = 0  # the tensors follow each other without gaps
        for begin, end_of_next in sorted(map(_data_of, header.values())):
            if begin != end:
                raise ValueError("a gap")
            end = end_of_next
        if path.stat().st_size != 8 + int(length) + end:
            raise ValueError("another length")
        return {name: tuple(entry["shape"]) for name, entry in header.items()}
    except (struct.error, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("a broken header") from error


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
    if not all(type(number) in (int, float) and math.isfinite(number) for number in numbers):
        return False
    history = state.get("log_history", [])
    return isinstance(history, list) and all(isinstance(entry, dict) for entry in history)


def _is_complete_archive(path: Path, thorough: bool) -> bool:
    """Whether torch.load can read the file: a zip archive with a pickle of what the file's name promises.

    `thorough`: compare the checksums.
    """
    if not path.is_file():
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            names = {*archive.namelist()}
            pickles = [name for name in names if name.endswith("data.pkl")]
            if len(pickles) != 1 or (thorough and archive.testzip() is not None):
                return False
            with archive.open(pickles[0]) as file:
                reader = _Reader(file)
                content = reader.load()
        folder = pickles[0][: -len("data.pkl")]
        return _is_content_of(path.name, content) and names >= {f"{folder}data/{key}" for key in reader.storages}
    except Exception:  # noqa: BLE001 - a broken zip file or pickle can raise anything
        return False


def _is_content_of(name: str, content: Any) -> bool:
    """Whether this is an optimizer's, a schedule's or the random generators' state, by the file's name."""
    if not isinstance(content, dict):
        return False
    if name.startswith("rng_state"):
        return {"python", "numpy", "cpu"} <= content.keys()
    if name == "scheduler.pt":
        return "last_epoch" in content
    groups = content.get("param_groups")
    return (
        isinstance(content.get("state"), dict)
        and isinstance(groups, list)
        and bool(groups)
        and all(isinstance(group, dict) and isinstance(group.get("params"), list) for group in groups)
    )


class _Object(dict[Any, Any]):
    """Stands for every object of a pickle that is not one of Python's own types. A dict for OrderedDict."""

    __hash__ = object.__hash__  # type: ignore[assignment]  # may be a key

    def __init__(self, *_arguments: Any, **_options: Any) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None: ...

    def append(self, item: Any) -> None: ...


class _Reader(pickle.Unpickler):
    """Reads the structure of a pickle, and runs nothing. `storages`: the entries that hold the tensors' data."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.storages: set[str] = set()

    def find_class(self, module: str, name: str) -> Any:
        # Below protocol 4, a pickle gets a nested class by getattr.
        is_nested = module in ("builtins", "__builtin__") and name == "getattr"
        return (lambda *_: _Object) if is_nested else _Object

    def persistent_load(self, entry: Any) -> Any:
        self.storages.add(entry[2])  # ("storage", type, key, device, size)
        return _Object()


def read_json(path: Path) -> dict[str, Any] | None:
    try:
        if not path.is_file():
            return None
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def refused(checkpoint: Path | str, problem: str) -> UsageError:
    """The error for a checkpoint that cannot be loaded."""
    return UsageError(
        f"checkpoint '{checkpoint}': {problem}: delete this checkpoint to continue from an older one"
    )
