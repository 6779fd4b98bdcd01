"""Whether an optimizer's step reaches the memory that a weight had before accelerate prepared the model."""

from __future__ import annotations

import json

import torch
from accelerate import Accelerator


def trained() -> tuple[str, bool]:
    """The device of the rank, and whether the memory that was kept is what changes."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    kept = model.weight.data  # as IPEX's packed layers keep it
    before = kept.clone()
    accelerator = Accelerator(cpu=True)
    device = str(accelerator.device)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    accelerator.backward(model(torch.ones(1, 4)).sum())
    optimizer.step()
    return device, not torch.equal(kept, before)


print(json.dumps(trained()))
