"""One rank of small training runs: ccl gives the same losses and weights as gloo.

    torchrun --nproc-per-node N training.py

torch before 2.6 has no FSDP2.
Covers DDP with a parameter that some ranks do not use, DDP with bf16 gradients, FSDP2, and DDP with torch's
PowerSGD and quantization hooks, whose callbacks call collectives and wait for them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd_hooks
from torch.distributed.algorithms.ddp_comm_hooks import quantization_hooks
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

importlib.import_module("oneccl_bindings_for_pytorch")  # registers the backend

STEPS = 5


class Net(nn.Module):
    """Without `use_even`, the parameters of `even` are unused."""

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
    # Wrapped, because DDP refuses a hook of this name without a GPU, for every backend.
    model.register_comm_hook(group, lambda group, bucket: bf16_compress_hook(group, bucket))
    return model


def ddp_hook(group: dist.ProcessGroup, net: Net) -> nn.Module:
    model = DistributedDataParallel(net, process_group=group, find_unused_parameters=True)
    model.register_comm_hook(group, allreduce_hook)
    return model


def orthogonalize_any(
    matrices: torch.Tensor, epsilon: float = 0, *, batch: Callable[..., None] = power_sgd_hooks._orthogonalize
) -> None:
    """torch's function, extended to the single matrix that torch's batched hook passes."""
    batch(matrices if matrices.dim() == 3 else matrices.unsqueeze(0), epsilon)


def power_sgd(group: dist.ProcessGroup, net: Net, *, rank: int, batched: bool, bucket_mb: float = 25) -> nn.Module:
    model = DistributedDataParallel(net, process_group=group, bucket_cap_mb=bucket_mb)
    state = power_sgd_hooks.PowerSGDState(
        group, matrix_approximation_rank=rank, start_powerSGD_iter=2, use_error_feedback=True, random_seed=0
    )
    if torch.__version__ >= "1.11":  # older releases call the function with one matrix at a time
        power_sgd_hooks._orthogonalize = orthogonalize_any
    hook = power_sgd_hooks.batched_powerSGD_hook if batched else power_sgd_hooks.powerSGD_hook
    model.register_comm_hook(state, hook)
    return model


class Nested:
    """torch.distributed, with the list of lists that the quantization hooks expect of an all_gather's future."""

    def __getattr__(self, name: str) -> Any:
        return getattr(dist, name)

    def all_gather(self, *arguments: Any, **options: Any) -> Any:
        work = dist.all_gather(*arguments, **options)
        future = work.get_future().then(lambda done: [done.value()])
        return SimpleNamespace(get_future=lambda: future)


def quantized(group: dist.ProcessGroup, net: Net) -> nn.Module:
    quantization_hooks.dist = Nested()
    model = DistributedDataParallel(net, process_group=group)
    model.register_comm_hook(group, quantization_hooks.quantization_pertensor_hook)
    return model


def fsdp(group: dist.ProcessGroup, net: Net) -> nn.Module:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    mesh = DeviceMesh.from_group(group, "cpu")
    for layer in (net.first, net.even, net.last):
        fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def train(
    wrap: Callable[[dist.ProcessGroup, Net], nn.Module], backend: str, same_path: bool
) -> tuple[list[float], torch.Tensor]:
    """The losses of the steps, and all weights afterwards; no weights with FSDP."""
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
    parameters = [] if wrap is fsdp else [parameter.detach().reshape(-1) for parameter in model.parameters()]
    return losses, torch.cat([torch.empty(0), *parameters])


def differs_between_ranks(weights: torch.Tensor) -> bool:
    gathered = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, weights)
    return any(not torch.equal(other, weights) for other in gathered)


# The releases of torch with these. The hook of older ones needs CUDA.
SINCE = {"fsdp": "2.6", "quantized": "2.7"}


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("ccl", timeout=timedelta(seconds=60))
    wrappers: dict[str, Callable[[dist.ProcessGroup, Net], nn.Module]] = {
        "ddp": ddp,
        "ddp_bf16": ddp_bf16,
        "ddp_hook": ddp_hook,
        "fsdp": fsdp,
        "power_sgd_1": partial(power_sgd, rank=1, batched=False),
        "power_sgd_2": partial(power_sgd, rank=2, batched=False),
        "batched_power_sgd": partial(power_sgd, rank=1, batched=True),
        "quantized": quantized,
    }
    for name, wrap in wrappers.items():
        if torch.__version__ < SINCE.get(name, ""):
            if dist.get_rank() == 0:
                print(f"{name}: not before torch {SINCE[name]}", flush=True)
            continue
        same_path = wrap not in (ddp, ddp_bf16, ddp_hook)
        reference = ddp if wrap is ddp_bf16 and torch.__version__ < "2.4" else wrap  # gloo has no bf16
        ccl, ccl_weights = train(wrap, "ccl", same_path)
        gloo, gloo_weights = train(reference, "gloo", same_path)
        torch.testing.assert_close(ccl, gloo, rtol=5e-3, atol=0.0)
        torch.testing.assert_close(ccl_weights, gloo_weights, rtol=1e-4, atol=1e-5 if same_path else 5e-3)
        if dist.get_rank() == 0:
            print(f"{name}: {ccl[0]:.4f} to {ccl[-1]:.4f} with both", flush=True)
    # Several buckets: their callbacks run during the backward pass, and have to call collectives in one order.
    losses, weights = train(partial(power_sgd, rank=2, batched=False, bucket_mb=0.05), "ccl", same_path=True)
    if differs_between_ranks(weights):
        raise AssertionError("PowerSGD in several buckets: the weights differ between ranks")
    if dist.get_rank() == 0:
        print(f"power_sgd in several buckets: {losses[0]:.4f} to {losses[-1]:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
