"""Runs inside the image under `run`: trains a small model, then prints where its threads and children run."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset


class Masks(Dataset[list[int]]):
    """The CPUs of the process that loads an item."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> list[int]:
        return sorted(os.sched_getaffinity(0))


def masks_of_openmp() -> list[str]:
    status = (file.read_text() for file in Path("/proc/self/task").glob("*/status"))
    fields = (dict(re.findall(r"^(\w+):\s*(.*)$", text, re.MULTILINE)) for text in status)
    return sorted(one["Cpus_allowed_list"] for one in fields if one["Name"].startswith("openmp"))


model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512))
for _ in range(5):
    loss = model(torch.randn(256, 512)).square().mean()
    loss.backward()
    with torch.no_grad():  # by hand: torch's optimizers import its compiler, which takes seconds
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
            parameter.grad = None
child = ["python", "-c", "import os; print(*sorted(os.sched_getaffinity(0)))"]
print(
    json.dumps(
        {
            "world_size": int(os.environ["WORLD_SIZE"]),
            "threads": torch.get_num_threads(),
            "main": sorted(os.sched_getaffinity(0)),
            "openmp": masks_of_openmp(),
            "child": [int(cpu) for cpu in subprocess.check_output(child, text=True).split()],
            "loader": next(iter(DataLoader(Masks(), batch_size=None, num_workers=1))),
        }
    ),
    flush=True,
)
