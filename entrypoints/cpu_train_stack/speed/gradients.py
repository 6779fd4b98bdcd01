"""How DistributedDataParallel (DDP) stores and exchanges the gradients of Trainer's model.

- By default, DDP copies each gradient into a bucket, exchanges the bucket and copies the result back: after the
  backward pass, each gradient exists twice. With DDP's `gradient_as_bucket_view`, gradients are views of the
  buckets, with the same values.
- Most rows of a word embedding's gradient are zero. Only the others are exchanged (`word_rows`).
"""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from cpu_train_stack.adapt.adaptation import Situation
from cpu_train_stack.adapt.changes import around, is_compiled
from cpu_train_stack.cli import packages
from cpu_train_stack.speed import word_rows
from cpu_train_stack.speed.step_clock import waiting


def share(trainer: Any) -> None:
    """Make the gradients of a Trainer's model views of the buckets. Call before accelerate creates DDP.

    Does nothing for a model that IPEX has optimized: its optimizers were not tested with views.
    """
    options = trainer.accelerator.ddp_handler
    is_ipex = any(type(module).__module__.startswith(packages.IPEX) for module in trainer.model.modules())
    if options is not None and not is_ipex and not getattr(trainer.args, "use_ipex", False):
        options.gradient_as_bucket_view = True


def exchange(model: Any, wanted: str | None) -> None:
    """Set up the exchange of gradients. Call before the first backward pass.

    `wanted`: "bf16" sends half of the bytes; "torch" is DDP's default; None is DDP's default, except that only the
    rows in use of a large word embedding are sent. `model`: as Trainer wrapped it.

    Does nothing without DDP, if DDP has its own process group, and if the script has registered its own hook.
    """
    wrapped = getattr(model, "_orig_mod", model)  # torch.compile's
    if wanted == "torch" or not isinstance(wrapped, DistributedDataParallel):
        return
    if getattr(wrapped, "_comm_hooks", None) or wrapped.process_group != dist.group.WORLD:
        return
    is_changed = wrapped is not model or any(map(is_compiled, wrapped.module.modules()))
    found = None if is_changed else word_rows.table(wrapped.module)
    if found is None and wanted is None:
        return
    rows = word_rows.WordRows(found, wrapped) if found is not None else None
    wire = torch.bfloat16 if wanted == "bf16" else None
    # Without a GPU, DDP refuses torch's bf16 hook by its name, although groups on CPUs add up bf16 too.
    plain = default_hooks.bf16_compress_hook if wire else default_hooks.allreduce_hook

    def hook(state: Any, bucket: Any) -> Any:
        with waiting():
            is_reduced = rows is not None and rows.reduce(bucket, wire)
        if not is_reduced:
            return plain(state, bucket)
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    hook.__annotations__.clear()  # torch accepts no annotations or its own types, but not their names as texts
    wrapped.register_comm_hook(None, hook)


def share_buckets(_situation: Situation, module: Any) -> None:
    """`module`: transformers.trainer."""

    @around(module.Trainer, "_wrap_model")  # the last method of Trainer before accelerate creates DDP
    def wrap(original: Any, self: Any, *arguments: Any, **options: Any) -> Any:
        wrapped = original(self, *arguments, **options)
        share(self)
        return wrapped


def exchange_rows(situation: Situation, module: Any) -> None:
    """`module`: transformers.trainer."""
    known: WeakSet[Any] = WeakSet()

    @around(module.Trainer, "training_step")
    def step(original: Any, self: Any, model: Any, *arguments: Any, **options: Any) -> Any:
        if model not in known:
            known.add(model)
            exchange(model, self.ddp_comm_hook if situation.in_train else None)
        return original(self, model, *arguments, **options)
