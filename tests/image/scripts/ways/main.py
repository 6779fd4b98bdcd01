"""Trains in each way, on all ranks, without and with accumulation. Rank 0 writes losses, norms, weights and lines.

Usage: main.py OUTPUT.json MODULES [WAYS]: names separated by commas, and by semicolons.
A step has the same eight rows, whatever the number of ranks and of accumulation steps.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from common import ROWS, UPDATES, Way

STEPS = (1, 4)
FLAGS = {
    "max_steps": UPDATES, "optim": "sgd", "learning_rate": 0.05, "lr_scheduler_type": "constant",
    "train_sampling_strategy": "sequential", "remove_unused_columns": False, "max_grad_norm": 1e9, "bf16": False,
    "logging_steps": 1, "save_strategy": "no", "report_to": [], "disable_tqdm": True,
}  # fmt: skip


def train(way: Way, steps: int) -> dict[str, Any]:
    """The losses, norms of gradients, and the sum of the trained weights, of one way."""
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    transformers.set_seed(1)
    flags = {**FLAGS, **way.options}
    if way.config is not transformers.TrainingArguments:
        flags.pop("remove_unused_columns")
    rows = ROWS // ranks // steps
    with tempfile.TemporaryDirectory() as folder:
        arguments = way.config(
            folder, per_device_train_batch_size=rows, gradient_accumulation_steps=steps, **flags
        )
        trainer = way.build(arguments)
        trainer.train()
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    weights = [weight.detach().double().square().sum() for weight in trainer.model.parameters()]
    return {
        "losses": [float(entry["loss"]) for entry in logged],
        "norms": [float(entry["grad_norm"]) for entry in logged],
        "weights": float(torch.stack(weights).sum()),
    }


def observed(way: Way, steps: int) -> dict[str, Any]:
    """The numbers of one way, or its exception, and the lines about its loss."""
    errors, sys.stderr = sys.stderr, io.StringIO()
    found: dict[str, Any]
    try:
        found = train(way, steps)
    except Exception as error:  # noqa: BLE001 - another way may work
        found = {"error": f"{type(error).__name__}: {error}"}
        traceback.print_exc(file=errors)
    finally:
        printed, sys.stderr = sys.stderr.getvalue(), errors
    return {**found, "lines": [line for line in printed.splitlines() if "loss-scale" in line]}


def main() -> None:
    output, modules, *wanted = sys.argv[1:]
    chosen = wanted[0].split(";") if wanted else None
    found: dict[str, dict[int, Any]] = {}
    torch.set_num_threads(1)
    for module in modules.split(","):
        ways: dict[str, Way] = importlib.import_module(module).WAYS
        for name, way in ways.items():
            if chosen is None or name in chosen:
                for steps in STEPS if way.accumulates else STEPS[:1]:
                    found.setdefault(name, {})[steps] = observed(way, steps)
    if int(os.environ.get("RANK", "0")) == 0:
        Path(output).write_text(json.dumps(found))


main()
