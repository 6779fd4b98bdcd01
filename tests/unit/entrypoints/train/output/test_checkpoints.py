"""A checkpoint that was only half written is never resumed from."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from entrypoints.train.output import checkpoints


def safetensors(path: Path, size: int = 16) -> None:
    tensor = {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}
    header = json.dumps({"__metadata__": {}, "w": tensor}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(size))


def whole(folder: Path, step: int) -> Path:
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    safetensors(path / "model.safetensors")
    for name in ("optimizer.pt", "scheduler.pt"):
        with zipfile.ZipFile(path / name, "w") as archive:
            archive.writestr("data", b"0" * 100)
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return path


def cut(path: Path, size: int = -1) -> None:
    path.write_bytes(path.read_bytes()[:size])


def index(path: Path, weight_map: dict[str, str]) -> None:
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


DAMAGE: dict[str, Callable[[Path], None]] = {
    "no state": lambda path: (path / "trainer_state.json").unlink(),
    "half a state": lambda path: cut(path / "trainer_state.json"),
    "no weights": lambda path: (path / "model.safetensors").unlink(),
    "half of the weights": lambda path: cut(path / "model.safetensors"),
    "empty weights": lambda path: cut(path / "model.safetensors", 0),
    "no optimizer": lambda path: (path / "optimizer.pt").unlink(),
    "half an optimizer": lambda path: cut(path / "optimizer.pt", 60),
    "no scheduler": lambda path: (path / "scheduler.pt").unlink(),
    "a shard is missing": lambda path: index(path, {"w": "model.safetensors", "v": "model-2.safetensors"}),
}


def test_the_last_whole_checkpoint_is_found_by_its_number(tmp_path: Path) -> None:
    for step in (2, 10, 9):
        whole(tmp_path, step)
    (tmp_path / "checkpoint-x").mkdir()
    assert checkpoints.last_whole(tmp_path) == (tmp_path / "checkpoint-10", [])


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_checkpoint_is_passed_over_for_an_older_one(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    older = whole(tmp_path, 2)
    damage(whole(tmp_path, 4))
    found, notes = checkpoints.last_whole(tmp_path)
    assert found == older
    assert len(notes) == 1
    assert notes[0].startswith("checkpoint-4 is passed over:")


def test_sharded_weights_are_whole_if_every_shard_is(tmp_path: Path) -> None:
    path = whole(tmp_path, 2)
    (path / "model.safetensors").unlink()
    for name in ("a.safetensors", "b.safetensors"):
        safetensors(path / name)
    index(path, {"v": "a.safetensors", "w": "b.safetensors"})
    assert checkpoints.fault(path) is None


def test_there_may_be_no_checkpoint_and_no_folder(tmp_path: Path) -> None:
    assert checkpoints.last_whole(tmp_path) == (None, [])
    assert checkpoints.last_whole(tmp_path / "none") == (None, [])
    assert checkpoints.fault(tmp_path / "none") == "there is no such folder"
