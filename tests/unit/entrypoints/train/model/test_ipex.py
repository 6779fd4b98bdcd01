"""Layers that IPEX packed learn in a process group. Runs only in images with IPEX."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cpu_train_stack.cli.packages import IPEX, release, versions
from tests.unit.entrypoints.test_dispatch import entrypoint

INSTALLED = versions(["torch", "accelerate", IPEX])
# Before it accelerate makes no DistributedDataParallel of a group of one rank.
WRAPS_ONE_RANK = "0.29.0"
LOOP = """
import json

import intel_extension_for_pytorch as ipex
import torch
from accelerate import Accelerator


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(50, 64)
        self.hidden = torch.nn.Linear(64, 128)
        self.classes = torch.nn.Linear(128, 2)

    def forward(self, rows):
        return self.classes(torch.relu(self.hidden(self.words(rows))).mean(1))


torch.manual_seed(0)
model = Classifier().train()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
model, optimizer = ipex.optimize(model, optimizer=optimizer, dtype=torch.bfloat16, inplace=True)
packed = sum("intel" in type(module).__module__ for module in model.modules())
accelerator = Accelerator(cpu=True, mixed_precision="bf16")
model, optimizer = accelerator.prepare(model, optimizer)
losses = []
for step in range(40):
    labels = torch.arange(16) % 2
    rows = torch.randint(10, 50, (16, 12))
    rows[:, ::3] = 5 + labels[:, None]
    loss = torch.nn.functional.cross_entropy(model(rows).float(), labels)
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
    losses.append(loss.item())
print(json.dumps({"packed": packed, "model": type(model).__name__, "losses": losses}))
"""


@pytest.mark.skipif(
    release(INSTALLED.get("torch")) < (2,), reason="gloo of torch before 2.0 has no bf16, which IPEX's weights are"
)
@pytest.mark.skipif(IPEX not in INSTALLED, reason="no IPEX here: ./inv test --inside PIN of a row that has it")
def test_layers_that_ipex_packed_learn_in_a_process_group(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    done = entrypoint(
        "run", "--quiet", "--backend", "gloo", str(tmp_path / "loop.py"), env={"HOME": str(tmp_path)}
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["packed"] == 2
    wraps = release(INSTALLED["accelerate"]) >= release(WRAPS_ONE_RANK)
    assert (seen["model"] == "DistributedDataParallel") is wraps
    assert seen["losses"][-1] < seen["losses"][0] / 2
