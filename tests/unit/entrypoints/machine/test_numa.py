"""The NUMA memory policy, with the real system calls."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cpu_train_stack.machine import numa
from cpu_train_stack.machine.numa import MemoryPolicy
from tests.unit.entrypoints import ROOT

needs_policies = pytest.mark.skipif(
    numa.current() in (numa.REFUSED, numa.UNKNOWN),
    reason="this kernel or container has no NUMA memory policy to set (CAP_SYS_NICE allows it)",
)


def policy_of_a_child(policy: MemoryPolicy) -> str:
    """What a program sees that a process with this policy starts."""
    code = (
        "import os, sys; from cpu_train_stack.machine import numa\n"
        "from cpu_train_stack.machine.numa import MemoryPolicy\n"
        f"numa.apply({policy!r})\n"
        "code = 'from cpu_train_stack.machine import numa; print(numa.current())'\n"
        "os.execv(sys.executable, [sys.executable, '-c', code])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@needs_policies
@pytest.mark.parametrize(
    "policy",
    [MemoryPolicy("preferred", (0,)), MemoryPolicy("interleave", (0,)), MemoryPolicy()],
    ids=["preferred", "interleave", "default"],
)
def test_a_policy_survives_the_exec_of_the_worker(policy: MemoryPolicy) -> None:
    assert policy_of_a_child(policy) == policy.mode


@needs_policies
@pytest.mark.parametrize("node", [8, 64, 1000])
def test_a_missing_node_raises(node: int) -> None:
    if Path(f"/sys/devices/system/node/node{node}").exists():
        pytest.skip(f"this machine has a NUMA node {node}")
    with pytest.raises(OSError, match="Invalid argument"):
        numa.apply(MemoryPolicy("preferred", (node,)))
