"""What a rank's first process reads from its command line, and how it applies the plan."""

from __future__ import annotations

import os

import pytest

from cpu_train_stack.cli.options import default_backend
from cpu_train_stack.machine import numa
from cpu_train_stack.machine.numa import MemoryPolicy
from cpu_train_stack.rank import start

DEFAULT = default_backend()


@pytest.mark.parametrize(
    ("line", "backend"),
    [
        ("train --bf16 --backend gloo --output_dir x", "gloo"),
        ("train --backend=ccl", "ccl"),
        ("train --bf16", DEFAULT),
        ("train --backend", DEFAULT),
        ("train --no_cuda --ddp_backend gloo", "gloo"),
        ("train --xpu-backend=gloo --backend ccl", "ccl"),
        ("run --backend ccl script.py --backend x", "ccl"),
        ("run --timeout 5 --backend ccl script.py", "ccl"),
        ("run --quiet --backend=gloo -m module", "gloo"),
        ("run script.py --backend nccl", DEFAULT),
        ("run --timeout 5 script.py --backend nccl", DEFAULT),
        ("run -m module --backend nccl", DEFAULT),
        ("run --backend", DEFAULT),
        ("bench collectives --backend gloo", "gloo"),
        ("bench collectives --backend none", DEFAULT),
        ("bench scaling --ratio x", DEFAULT),
    ],
)
def test_the_backend_is_read_from_a_ranks_own_options(line: str, backend: str) -> None:
    assert start.backend_of(line.split()) == backend


def test_a_refused_policy_is_a_warning_and_the_rank_continues(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(policy: MemoryPolicy) -> None:  # what container engines' default profile does
        raise PermissionError(1, os.strerror(1))

    monkeypatch.setattr(numa, "apply", refuse)
    start._set_memory_policy(MemoryPolicy("preferred", (1,)))
    assert "memory policy preferred on NUMA node 1 is refused" in capsys.readouterr().err
