"""How the trainer configures DDP, on real ranks."""

import functools
from collections.abc import Callable

import pytest

from tests import containers
from tests.containers import RunInImage
from tests.image.container_scripts import MOUNT


@pytest.fixture(scope="module")
def printed(image: str) -> Callable[[str], list[str]]:
    """The lines that ddp.py prints with a backend. One pair of ranks for each backend runs all of its cases."""

    @functools.cache
    def run(backend: str) -> list[str]:
        cases = ("views", "rows") if backend == "ccl" else ("plain",)
        command = ("launch", "--nproc-per-node=2", "--", "run", "--backend", backend, "/s/ddp.py", *cases)
        return containers.works(containers.run(image, *command, docker_args=MOUNT)).splitlines()

    return run


def test_gradients_lie_in_what_is_exchanged_and_the_weights_are_those_without(
    printed: Callable[[str], list[str]],
) -> None:
    lines = [line for line in printed("ccl") if line[0].isdigit()]
    assert len(lines) == 2  # without and with accumulation
    for line in lines:
        pieces, weights, pieces_without, weights_without = line.split()
        assert int(pieces) <= 2 < int(pieces_without)
        assert weights == weights_without


def exchanged(lines: list[str]) -> dict[str, tuple[float, float]]:
    """By case: the share of the weights that was sent, and the difference to DDP's own exchange."""
    found = {}
    for line in lines:
        if not line[0].isdigit():
            name, weights, sent, difference = line.split()
            found[name] = (int(sent) / int(weights), float(difference))
    return found


def test_the_rows_of_a_word_embedding_are_exchanged_alone_where_only_words_use_it(
    printed: Callable[[str], list[str]],
) -> None:
    found = exchanged(printed("ccl"))
    for name in ("plain", "accumulated", "bf16", "script"):
        assert 0.01 < found[name][0] < 0.1
    # found out at the exchange: all is sent
    for name in ("read_by_more_than_words", "read_later_by_more_than_words", "too_many_rows"):
        assert 1 < found[name][0] < 1.1
    for name in ("shared_with_the_output", "positions", "small"):  # DDP's own exchange
        assert found[name][0] < 0.01
    differences = {name: difference for name, (_, difference) in found.items()}
    assert 0 < differences.pop("bf16") < 0.03  # AdamW makes a step of 0.01 of the smallest gradient
    assert set(differences.values()) == {0.0}


def test_gloo_exchanges_the_rows_of_a_word_embedding_too(printed: Callable[[str], list[str]]) -> None:
    found = exchanged(printed("gloo"))
    assert all(0.01 < found[name][0] < 0.1 for name in ("plain", "bf16"))
    assert found["plain"][1] == 0.0
    assert 0 < found["bf16"][1] < 0.03


UNUSED = """
import torch
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments
from cpu_train_stack.train.loop import ddp

model = BertForSequenceClassification(BertConfig(num_hidden_layers=1, hidden_size=24, intermediate_size=32))
batch = {"input_ids": torch.tensor([[2, 7, 3]]), "labels": torch.tensor([1])}
for extra, given in ((None, None), (torch.nn.Linear(2, 2), None), (None, True)):
    model.extra = extra
    arguments = TrainingArguments("/tmp/x", use_cpu=True, ddp_find_unused_parameters=given)
    ddp.tune(arguments, model, batch)
    assert all(parameter.grad is None for parameter in model.parameters())
    print(arguments.ddp_find_unused_parameters, arguments.ddp_broadcast_buffers)
# Labels that the model's own loss refuses.
model.extra, arguments, batch["labels"] = None, TrainingArguments("/tmp/x", use_cpu=True), torch.ones(1, 3)
ddp.tune(arguments, model, batch, lambda outputs, labels: outputs["logits"].sum() * labels.sum())
print(arguments.ddp_find_unused_parameters)
"""


def test_ddp_searches_for_unused_parameters_only_where_there_are_some(run_in_image: RunInImage) -> None:
    done = run_in_image("python", "-c", UNUSED)
    assert done.stdout.split() == ["False", "False", "True", "False", "True", "False", "False"], done.stderr
