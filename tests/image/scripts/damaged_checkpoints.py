"""Copies of a run's folder, in each of which the newest checkpoint has one wrong file.

Usage: damaged_checkpoints.py ... FOLDER. The folder holds `full` and `adapted`, with checkpoints of steps 2 and 4.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

FOLDER = Path(sys.argv[-1])
LACKING = {"full": "bert.encoder.layer.1.output.dense.weight", "adapted": "lora_B"}


def weights(path: Path, change: Callable[[dict[str, Any], str], object]) -> None:
    tensors = load_file(path)
    change(tensors, next(name for name in sorted(tensors) if any(part in name for part in LACKING.values())))
    save_file(tensors, path, metadata={"format": "pt"})


def saved(path: Path, change: Callable[[Any], object]) -> None:
    content = torch.load(path, weights_only=False)
    changed = change(content)
    torch.save(content if changed is None else changed, path)


def shape(content: Any) -> None:
    content["state"][0]["exp_avg"] = torch.zeros(3)


def key(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "unknown": 1}))


def link(path: Path) -> None:
    shutil.rmtree(path)
    path.symlink_to("nowhere")


# Each with the file of the newest checkpoint, of a run of the full model if not said otherwise.
DAMAGE: dict[str, tuple[str, Callable[[Path], object]]] = {
    "lacking": ("model.safetensors", lambda path: weights(path, lambda tensors, name: tensors.pop(name))),
    "reshaped": (
        "model.safetensors",
        lambda path: weights(path, lambda tensors, name: tensors.update({name: torch.zeros(3)})),
    ),
    "adapter": ("adapter_model.safetensors", lambda path: weights(path, lambda all_, name: all_.pop(name))),
    "optimizer": ("optimizer.pt", lambda path: torch.save(torch.nn.Linear(2, 2).state_dict(), path)),
    "module": ("optimizer.pt", lambda path: torch.save(torch.nn.Linear(2, 2), path)),
    "groups": ("optimizer.pt", lambda path: saved(path, lambda state: state["param_groups"].__delitem__(1))),
    "shape": ("optimizer.pt", lambda path: saved(path, shape)),
    "scheduler": ("scheduler.pt", lambda path: torch.save({"last_epoch": 4}, path)),
    "random": ("rng_state.pth", lambda path: saved(path, lambda state: state.update(cpu=[1]))),
    "no generators": ("rng_state.pth", lambda path: torch.save([1], path)),
    "state": ("trainer_state.json", key),
    "link": ("", link),
}
for name, (file, damage) in DAMAGE.items():
    shutil.copytree(FOLDER / ("adapted" if name == "adapter" else "full"), FOLDER / name)
    damage(FOLDER / name / "checkpoint-4" / file)
    for path in (FOLDER / name, *(FOLDER / name).rglob("*")):
        if not path.is_symlink():
            path.chmod(0o777)
