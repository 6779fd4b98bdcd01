"""One rank of small trainings: the same losses with ccl as with gloo.

    torchrun --nproc-per-node N training.py

DDP with a parameter that some ranks do not use, DDP with gradients sent as bf16, FSDP2.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import oneccl_bindings_for_pytorch  # noqa: F401  registers the backend
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, bf16_compress_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

STEPS = 5


class Net(nn.Module):  # type: ignore[misc]  # torch has no types where they are checked
    """The second branch is used by even ranks only."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 300)
        self.even = nn.Linear(300, 300)
        self.last = nn.Linear(300, 8)

    def forward(self, x: torch.Tensor, use_even: bool) -> torch.Tensor:
        hidden: torch.Tensor = torch.relu(self.first(x))
        if use_even:
            hidden = hidden + self.even(hidden)
        result: torch.Tensor = self.last(hidden)
        return result


def ddp(group: dist.ProcessGroup, net: Net) -> nn.Module:
    return DistributedDataParallel(net, process_group=group, find_unused_parameters=True, bucket_cap_mb=1)


def ddp_bf16(group: dist.ProcessGroup, net: Net) -> nn.Module:
    model = DistributedDataParallel(net, process_group=group, find_unused_parameters=True)
    # Not by its own name, which DDP refuses without a GPU, whatever the backend.
    model.register_comm_hook(group, lambda group, bucket: bf16_compress_hook(group, bucket))
    return model


def ddp_hook(group: dist.ProcessGroup, net: Net) -> nn.Module:
    model = DistributedDataParallel(net, process_group=group, find_unused_parameters=True)
    model.register_comm_hook(group, allreduce_hook)
    return model


def fsdp(group: dist.ProcessGroup, net: Net) -> nn.Module:
    mesh = DeviceMesh.from_group(group, "cpu")
    for layer in (net.first, net.even, net.last):
        fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def train(wrap: Callable[[dist.ProcessGroup, Net], nn.Module], backend: str, same_path: bool) -> list[float]:
    torch.manual_seed(0)
    group = dist.new_group(backend=backend, timeout=timedelta(seconds=60))
    model = wrap(group, Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(STEPS):
        x = torch.randn(16, 32, generator=generator)
        loss = model(x, same_path or dist.get_rank() % 2 == 0).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total, group=group)
        losses.append(total.item())
    return losses


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("cpu:ccl", timeout=timedelta(seconds=60))
    for wrap in (ddp, ddp_bf16, ddp_hook, fsdp):
        with_ccl, with_gloo = (train(wrap, backend, same_path=wrap is fsdp) for backend in ("ccl", "gloo"))
        torch.testing.assert_close(with_ccl, with_gloo, rtol=5e-3, atol=0.0)
        if dist.get_rank() == 0:
            print(f"{wrap.__name__}: {with_ccl[0]:.4f} to {with_ccl[-1]:.4f} with both", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
