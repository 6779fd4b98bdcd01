"""Which Python processes become ranks of the image: those that torchrun starts with a script or a module."""

from __future__ import annotations

import pytest

from cpu_train_stack import contract
from cpu_train_stack.rank.torchrun import adopted

RANK = {"TORCHELASTIC_RUN_ID": "none", "RANK": "1", "LOCAL_RANK": "1"}
AGENT = ["PATH=/usr/bin", "PET_NNODES=2"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("python -u train.py --lr 1", "train.py --lr 1"),
        ("/opt/venv/bin/python train.py", "train.py"),
        ("python -u -m package.module -u", "-m package.module -u"),
        ("python -m cpu_train_stack train", ""),
        ("python -u -m cpu_train_stack.rank.worker train", ""),
        ("python -c pass", ""),
        ("python -X dev train.py", ""),
        ("python -u -m", ""),
        ("python", ""),
    ],
)
def test_the_script_of_a_foreign_torchrun_is_run(line: str, expected: str) -> None:
    assert adopted(line.split(), RANK, AGENT) == expected.split()


def test_other_processes_keep_their_command() -> None:
    words = ["python", "-u", "train.py"]
    assert adopted(words, {}, AGENT) == []
    assert adopted(words, {"RANK": "1"}, AGENT) == []
    assert adopted(words, {**RANK, contract.TORCHRUN: "plain"}, AGENT) == []
    # A process that a rank has started inherits the rank's variables.
    assert adopted(words, RANK, []) == []
    assert adopted(words, RANK, [*AGENT, "TORCHELASTIC_RUN_ID=none"]) == []
    assert adopted(words, RANK, AGENT) == ["train.py"]
