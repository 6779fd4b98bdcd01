"""An allreduce between two real ranks in this container, with each backend of the image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from entrypoints.cli import packages
from entrypoints.doctor import ranks
from entrypoints.doctor.checks import Check, Status
from entrypoints.machine import shared_memory

MODULE = "entrypoints.doctor.exchange"
RANKS = 2
# An idle machine takes five seconds; a busy machine must not fail.
SECONDS = 180.0
# Below SECONDS, so that the backend reports its own timeout.
TIMEOUT_SECONDS = 60
# Keeps ccl off shared memory that may be too small: see `shared_memory`.
TCP_ALONE = {"CCL_ATL_SHM": "0", "FI_PROVIDER": "tcp"}


def judge(backend: str, outcome: ranks.Outcome, expect_shared_memory: bool) -> Check:
    """`expect_shared_memory`: the backend is ccl, and shared memory is large enough."""
    name = f"allreduce {backend}"
    if outcome.problem or not outcome.found:
        fix = "see the other lines" + (", or use --backend gloo instead" if backend == "ccl" else "")
        return Check(name, Status.ERROR, f"two ranks failed: {outcome.problem or 'no output'}", fix)
    found = outcome.found[0]
    way = "shared memory" if found["shared_memory"] else "tcp"
    if found["backend"] != backend or found["ranks"] != RANKS:
        detail = f"{found['ranks']} rank(s) met over {found['backend']}, expected {RANKS} over {backend}"
        return Check(name, Status.ERROR, detail, "unset the variables that start or configure ranks")
    detail = f"correct, over {way}: {speeds(found)}"
    if expect_shared_memory and not found["shared_memory"]:
        fix = "unset CCL_ATL_SHM and FI_PROVIDER, or read libfabric's log with FI_LOG_LEVEL=warn"
        return Check(name, Status.WARNING, f"{detail}; shared memory is large enough, but not used", fix)
    return Check(name, Status.OK, detail)


def speeds(found: Mapping[str, Any]) -> str:
    return f"4 KB in {found['small_seconds'] * 1e3:.2f} ms, 8 MB in {found['large_seconds'] * 1e3:.1f} ms"


def examine() -> list[Check]:
    """Check gloo, and ccl if the image has it."""
    room = shared_memory.read().free >= shared_memory.needed(RANKS, shared_memory.online_cpus())
    checks = []
    for backend in ("gloo", "ccl") if packages.installed(packages.CCL) else ("gloo",):
        over_tcp = backend == "ccl" and not room
        job = ["run", "--quiet", "--backend", backend, "--timeout", str(TIMEOUT_SECONDS), "-m", MODULE]
        outcome = ranks.start(
            ["launch", "--nnodes", "1", "--nproc-per-node", str(RANKS), "--", *job],
            SECONDS,
            TCP_ALONE if over_tcp else None,
        )
        checks.append(judge(backend, outcome, expect_shared_memory=backend == "ccl" and room))
    return checks
