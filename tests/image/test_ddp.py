"""What the trainer tells DDP, on real ranks."""

from __future__ import annotations

from pathlib import Path

from tests.containers import RunInImage

SCRIPTS = Path(__file__).with_name("scripts")
MOUNT = ("--volume", f"{SCRIPTS}:/s:ro")


def test_gradients_lie_in_what_is_exchanged_and_the_weights_are_those_without(run_in_image: RunInImage) -> None:
    done = run_in_image("launch", "--nproc-per-node=2", "--", "run", "/s/ddp.py", docker_args=MOUNT)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2  # without and with accumulation
    for line in lines:
        pieces, weights, pieces_without, weights_without = line.split()
        assert int(pieces) <= 2 < int(pieces_without)
        assert weights == weights_without


UNUSED = """
import torch
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments
from entrypoints.train import ddp

model = BertForSequenceClassification(BertConfig(num_hidden_layers=1, hidden_size=24, intermediate_size=32))
batch = {"input_ids": torch.tensor([[2, 7, 3]]), "labels": torch.tensor([1])}
for extra, given in ((None, None), (torch.nn.Linear(2, 2), None), (None, True)):
    model.extra = extra
    arguments = TrainingArguments("/tmp/x", use_cpu=True, ddp_find_unused_parameters=given)
    ddp.tune(arguments, model, batch)
    assert all(parameter.grad is None for parameter in model.parameters())
    print(arguments.ddp_find_unused_parameters, arguments.ddp_broadcast_buffers)
"""


def test_ddp_searches_for_unused_parameters_only_where_there_are_some(run_in_image: RunInImage) -> None:
    done = run_in_image("python", "-c", UNUSED)
    assert done.stdout.split() == ["False", "False", "True", "False", "True", "False"], done.stderr
