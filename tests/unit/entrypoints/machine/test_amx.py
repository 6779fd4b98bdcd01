"""Who refuses AMX: from /proc/cpuinfo, the release of Linux and the result of arch_prctl."""

from __future__ import annotations

import errno

import pytest

from cpu_train_stack.machine import amx

CPUINFO = "processor\t: 0\nvendor_id\t: {}\ncpu family\t: 6\nmodel\t\t: {}\nflags\t\t: avx512f avx512_bf16 {}\n\n"
SHOWN = "amx_bf16 amx_tile amx_int8 avx512_fp16"
HIDDEN = "avx512_fp16 hypervisor"


def facts(
    flags: str, model: int = 143, vendor: str = "GenuineIntel", kernel: str = "6.1.0-9-amd64", refusal: int = 0
) -> amx.AmxFacts:
    return amx.parse(CPUINFO.format(vendor, model, flags), kernel, refusal)


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(facts(SHOWN), id="bare metal"),
        # A Granite Rapids whose hypervisor shows another model number.
        pytest.param(facts(SHOWN + " hypervisor", model=167, kernel="6.18.44-fc-v769"), id="virtual machine"),
        # Red Hat's Linux 5.14 has AMX.
        pytest.param(facts(SHOWN, kernel="5.14.0-427.el9.x86_64"), id="backport"),
        pytest.param(facts("", model=106, refusal=errno.EINVAL, kernel="5.10.0"), id="Ice Lake"),
        pytest.param(facts("avx512_fp16", 80, "AuthenticAMD", refusal=errno.EOPNOTSUPP), id="another vendor"),
        pytest.param(amx.parse("", "6.1.0", errno.EINVAL), id="nothing to read"),
    ],
)
def test_nobody_refuses_amx(found: amx.AmxFacts) -> None:
    assert amx.refused(found) is None


@pytest.mark.parametrize(
    ("found", "who", "fix"),
    [
        (
            facts("", kernel="5.10.0-28-amd64", refusal=errno.EINVAL),
            "Linux 5.10.0-28-amd64",
            "Linux 5.16 or later",
        ),
        # Linux 5.15 lists what CPUID shows, and does not know the request.
        (facts(SHOWN, kernel="5.15.0-91-generic", refusal=errno.EINVAL), "Linux 5.15.0", "Linux 5.16 or later"),
        (facts(HIDDEN, refusal=errno.EOPNOTSUPP), "the hypervisor hides AMX", "host-passthrough"),
        (facts(HIDDEN, model=85, refusal=errno.EOPNOTSUPP), "the hypervisor hides AMX", "host-passthrough"),
        (facts("", refusal=errno.EOPNOTSUPP), "Linux shows no AMX", "firmware"),
        (facts(SHOWN, refusal=errno.EPERM), "arch_prctl refuses AMX to this process (EPERM)", "seccomp"),
    ],
    ids=["old kernel", "older than the request", "hypervisor", "other model", "firmware", "seccomp"],
)
def test_the_reason_names_who_refuses_and_the_fix(found: amx.AmxFacts, who: str, fix: str) -> None:
    reason = amx.refused(found)
    assert reason is not None
    assert reason[0].startswith(who)
    assert fix in reason[1]
