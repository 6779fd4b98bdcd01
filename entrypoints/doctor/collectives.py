"""An allreduce of two real ranks of this container, with each backend of the image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from entrypoints import ccl, shared_memory
from entrypoints.doctor import ranks
from entrypoints.doctor.checks import Check, Status

MODULE = "entrypoints.doctor.exchange"
RANKS = 2
# Far above the five seconds of an idle machine: a busy one is not a broken one.
SECONDS = 180.0
# Below the whole's bound, so that what the backend says of its own timeout is heard.
TIMEOUT_SECONDS = 60
# What keeps ccl off shared memory where there is not room for it for sure: see `shared_memory`.
TCP_ALONE = {"CCL_ATL_SHM": "0", "FI_PROVIDER": "tcp"}


def judge(backend: str, outcome: ranks.Outcome, expect_shared_memory: bool) -> Check:
    """`expect_shared_memory`: there is room for it, and ccl was to use it."""
    name = f"allreduce {backend}"
    if outcome.problem or not outcome.found:
        mend = "see the other lines; --backend gloo does without it" if backend == "ccl" else "see the other lines"
        return Check(name, Status.ERROR, f"two ranks fail: {outcome.problem or 'silent'}", mend)
    found = outcome.found[0]
    way = "shared memory" if found["shared_memory"] else "tcp"
    if found["backend"] != backend or found["ranks"] != RANKS:
        detail = f"{found['ranks']} rank(s) met over {found['backend']}, expected {RANKS} over {backend}"
        return Check(name, Status.ERROR, detail, "unset variables that start or steer ranks")
    detail = f"right, over {way}: {speeds(found)}"
    if expect_shared_memory and not found["shared_memory"]:
        mend = "see what libfabric says with FI_LOG_LEVEL=warn, and unset CCL_ATL_SHM and FI_PROVIDER"
        return Check(name, Status.WARNING, f"{detail}; shared memory has room, but is not used", mend)
    return Check(name, Status.OK, detail)


def speeds(found: Mapping[str, Any]) -> str:
    return f"4 KB in {found['small_seconds'] * 1e3:.2f} ms, 8 MB in {found['large_seconds'] * 1e3:.1f} ms"


def examine() -> list[Check]:
    """Gloo always; ccl where the image has it."""
    room = shared_memory.read().free >= shared_memory.needed(RANKS, shared_memory.online_cpus())
    checks = []
    for backend in ("gloo", "ccl") if ccl.installed() else ("gloo",):
        over_tcp = backend == "ccl" and not room
        job = ["run", "--quiet", "--backend", backend, "--timeout", str(TIMEOUT_SECONDS), "-m", MODULE]
        outcome = ranks.start(
            ["launch", "--nnodes", "1", "--nproc-per-node", str(RANKS), "--", *job],
            SECONDS,
            TCP_ALONE if over_tcp else None,
        )
        checks.append(judge(backend, outcome, expect_shared_memory=backend == "ccl" and room))
    return checks
