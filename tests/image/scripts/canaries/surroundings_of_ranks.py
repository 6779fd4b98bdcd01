"""Canaries of what libraries do in ranks: process group, device, scale of the loss, batches, progress."""

from __future__ import annotations

import inspect
import multiprocessing
import os
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate
import torch
import torch.distributed as dist
import transformers
from accelerate import Accelerator, data_loader, launchers
from adapted_names import Halves, arguments
from private_names import MovedError, hook
from transformers import Trainer, TrainingArguments

from cpu_train_stack.compat import launcher_variables, loss_scale


def be_rank() -> None:
    """Give this process the variables of torchrun for a job of one rank."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    os.environ.update(
        RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1", OMP_NUM_THREADS="1",
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
    )  # fmt: skip


def create_group() -> None:
    be_rank()
    dist.init_process_group("gloo")


def process_group() -> bool:
    """torch creates no second default group, and accelerate destroys the first one."""
    create_group()
    hook(dist, "init_process_group", "backend", "rank", "world_size", "timeout")
    hook(accelerate.state.PartialState, "destroy_process_group", "group")
    try:
        dist.init_process_group("gloo")
    except (RuntimeError, ValueError):
        return True
    return False


def notebook_launcher() -> bool:
    """It calls the function in processes that it starts."""
    hook(launchers, "notebook_launcher", "function", "args", "num_processes", "mixed_precision")
    queue: Any = multiprocessing.get_context("fork").SimpleQueue()
    launchers.notebook_launcher(lambda: queue.put(os.getpid()), num_processes=2)
    return bool(queue.get() != os.getpid())


def single_rank() -> bool:
    """accelerate wraps the model of a job with one rank in DDP."""
    be_rank()
    hook(dist.distributed_c10d, "_get_default_group")
    model = Accelerator(cpu=True).prepare(torch.nn.Linear(1, 1))
    return isinstance(model, torch.nn.parallel.DistributedDataParallel)


def launcher_names() -> bool:
    """The data of os.environ can be replaced by a dictionary with more names."""
    texts: Any = os.environ
    encoded: Any = os.environb
    if not isinstance(texts._data, dict) or texts._data is not encoded._data:
        raise MovedError("os.environ and os.environb do not share a dictionary")
    launcher_variables.supply(["CANARY"], lambda _name: "here")
    if os.environ.get("CANARY") != "here":
        raise MovedError("os.environ does not read missing variables with __missing__")
    return True


def use_cpu() -> bool:
    """Without use_cpu, bf16 is refused, or the rank is a job of its own."""
    create_group()
    hook(TrainingArguments, "__post_init__")
    arguments(bf16=True)  # with it
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    try:
        given = TrainingArguments(output_dir="/tmp/canaries", bf16=True, report_to=[])
    except ValueError:
        return True
    return given.device.type == "cpu" and str(given.parallel_mode.value) != "distributed"


def accelerator_cpu() -> bool:
    """Without cpu=True, the rank is a job of its own."""
    create_group()
    state = getattr(accelerate.state, "PartialState", None) or accelerate.state.AcceleratorState
    hook(state, "_shared_state")
    try:
        return str(Accelerator().distributed_type) == "DistributedType.NO"
    except (AssertionError, RuntimeError):  # releases of 2022 look for a GPU
        return True


def cpu_device() -> bool:
    """The device of a rank has an index."""
    create_group()
    device = accelerate.state.PartialState(cpu=True).device
    return device.type == "cpu" and device.index is not None


def scaled_loss() -> bool:
    """The loss of a model that takes **kwargs is not divided by the accumulation steps."""
    if unknown := loss_scale.unknown_code(Trainer):
        raise MovedError(f"unknown code in {', '.join(sorted(unknown))}")
    trainer = Trainer(Halves(), arguments(gradient_accumulation_steps=2))
    trainer.current_gradient_accumulation_steps = 2
    loss = trainer.training_step(trainer.model, {"labels": torch.ones(4)}, num_items_in_batch=torch.tensor(8))
    return float(loss) != 3.0


def local_rank() -> bool:
    """It is -1 on every rank."""
    create_group()
    given = arguments()
    hook(TrainingArguments, "local_process_index")
    return int(given.local_rank) != int(given.local_process_index)


def ragged_batches() -> bool:
    """Batches of different lengths cannot be concatenated."""
    hook(data_loader, "concatenate", "data", "dim")
    hook(data_loader.DataLoaderDispatcher, "__iter__")
    if "concatenate(" not in inspect.getsource(data_loader.DataLoaderDispatcher):
        raise MovedError("DataLoaderDispatcher does not call concatenate")
    data_loader.concatenate([{"a": torch.zeros(2, 3)}, {"a": torch.zeros(2, 3)}])
    try:
        data_loader.concatenate([{"a": torch.zeros(2, 3)}, {"a": torch.zeros(2, 4)}])
    except (RuntimeError, ValueError):
        return True
    return False


def progress() -> bool:
    """An update waits for a server that does not answer."""
    callback = hook(transformers.integrations.integration_utils, "KubeflowCallback")
    hook(callback, "_update_status", "progress_percent", "force")
    with socket.create_server(("127.0.0.1", 0)) as server, tempfile.TemporaryDirectory() as folder:
        token = Path(folder, "token")
        token.write_text("secret")
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        os.environ.update(KUBEFLOW_TRAINER_SERVER_URL=url, KUBEFLOW_TRAINER_SERVER_TOKEN=str(token))
        send = threading.Thread(
            target=callback()._update_status, kwargs={"progress_percent": 1, "force": True}, daemon=True
        )
        send.start()
        send.join(2.0)
        return send.is_alive()


CANARIES: dict[str, Callable[[], bool]] = {
    "process-group": process_group,
    "notebook-launcher": notebook_launcher,
    "single-rank": single_rank,
    "launcher-variables": launcher_names,
    "use-cpu": use_cpu,
    "accelerate-cpu": accelerator_cpu,
    "cpu-device": cpu_device,
    "loss-scale": scaled_loss,
    "local-rank": local_rank,
    "ragged-batches": ragged_batches,
    "progress": progress,
}
