"""Whether a CPU that has AMX may use it: Linux, a hypervisor or a container can refuse it. Torch-free."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from cpu_train_stack.cli import files
from cpu_train_stack.machine import cpus

# Intel's family and model numbers (Linux, intel-family.h): Sapphire, Emerald, Granite (two) and Diamond Rapids.
MODELS = {(6, 143), (6, 207), (6, 173), (6, 174), (19, 1)}
_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18
_OLDEST = (5, 16)


@dataclass(frozen=True)
class AmxFacts:
    """`is_amx_model`: the CPU's model has AMX, shown or not. `is_shown`: Linux lists amx_bf16.

    `is_virtual`: under a hypervisor. `kernel`: the release of Linux. `refusal`: the error number of the request
    to use the tiles' registers, 0 if it was granted.
    """

    is_amx_model: bool
    is_shown: bool
    is_virtual: bool
    kernel: str
    refusal: int


def read(root: Path = Path("/")) -> AmxFacts:
    """Ask Linux for AMX, which this process may then use."""
    library = ctypes.CDLL(None, use_errno=True)
    refused = library.syscall(_ARCH_PRCTL, _REQUEST, _TILE_DATA) != 0 if os.uname().machine == "x86_64" else True
    refusal = ctypes.get_errno() if refused else 0
    return parse(files.text(root / "proc/cpuinfo"), platform.release(), refusal)


def parse(cpuinfo: str, kernel: str, refusal: int) -> AmxFacts:
    """The facts from the text of /proc/cpuinfo and the rest. Pure."""
    entry = cpus.first_entry(cpuinfo.splitlines())
    flags = set(entry.get("flags", "").split())
    is_intel = entry.get("vendor_id") == "GenuineIntel"
    number = tuple(int(entry.get(name, "0")) for name in ("cpu family", "model"))
    # Intel's CPUs with AVX512-FP16 are those with AMX. A hypervisor may hide the model.
    is_model = is_intel and (number in MODELS or "avx512_fp16" in flags)
    return AmxFacts(is_model, "amx_bf16" in flags, "hypervisor" in flags, kernel, refusal)


def refused(facts: AmxFacts) -> tuple[str, str] | None:
    """Who refuses AMX to this process, and how to fix it. None if it may use AMX or the CPU has none. Pure."""
    if not (facts.is_amx_model or facts.is_shown) or (facts.is_shown and not facts.refusal):
        return None
    if _version(facts.kernel) < _OLDEST:
        return (
            f"Linux {facts.kernel} does not support AMX, which this CPU has",
            "boot the node with Linux 5.16 or later",
        )
    if not facts.is_shown and facts.is_virtual:
        return (
            "the hypervisor hides AMX, which this CPU has",
            "show the guest the host's CPU: with KVM, -cpu host (libvirt: mode='host-passthrough') of QEMU 7.0 or "
            "later on Linux 5.17 or later; in a cloud, choose a machine type that lists AMX",
        )
    if not facts.is_shown:
        return (
            "Linux shows no AMX, which this CPU has",
            "enable AMX in the firmware, and remove clearcpuid and noxsave from the kernel's command line",
        )
    name = errno.errorcode.get(facts.refusal, str(facts.refusal))
    return (
        f"arch_prctl refuses AMX to this process ({name})",
        "allow arch_prctl in the container's seccomp profile, and use a runtime on the host's kernel (not gVisor)",
    )


def _version(release: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", release)
    return (int(found[1]), int(found[2])) if found else _OLDEST
