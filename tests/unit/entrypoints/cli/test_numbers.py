"""Every numeric option of the image's commands refuses numbers that mean nothing, and has an upper bound."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

import pytest

from cpu_train_stack.bench.arguments import Collectives, Scaling
from cpu_train_stack.doctor.main import DoctorOptions as Doctor
from cpu_train_stack.generate.command import Generate
from cpu_train_stack.launch.mpi.command import MpiLaunch
from cpu_train_stack.launch.mpi.ssh import Server
from cpu_train_stack.launch.options import Launch
from cpu_train_stack.plan.command import PlanOptions as Plan
from cpu_train_stack.rank.script import Script
from cpu_train_stack.watch.main import WatchOptions as Watch

COMMANDS: tuple[Any, ...] = (
    Launch,
    MpiLaunch,
    Server,
    Collectives,
    Scaling,
    Generate,
    Script,
    Plan,
    Doctor,
    Watch,
)
OPTIONS = {
    f"{command.__module__} {item.metadata['flag']}": item.metadata["type"]
    for command in COMMANDS
    for item in fields(command)
    if ("int" in str(item.type) or "float" in str(item.type)) and item.metadata["flag"] != "--rdzv-endpoint"
}
WRONG = ("nan", "inf", "-inf", "1e999", "-1", "-0.5", "99999999999999999999", "9" * 5000, "", "x", "1e", "\u0663")
# 0 is the first rank, any port, no restart, a seed.
ZERO = {"--node-rank", "--local-rank", "--master-port", "--max-restarts", "--seed"}


def test_every_command_has_numeric_options() -> None:
    assert len(OPTIONS) > 20, OPTIONS


@pytest.mark.parametrize("name", OPTIONS)
def test_a_number_that_means_nothing_is_refused(name: str) -> None:
    for text in (*WRONG, *(() if name.split()[-1] in ZERO else ("0",))):
        with pytest.raises(argparse.ArgumentTypeError, match="expected"):
            OPTIONS[name](text)
