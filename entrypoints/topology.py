"""What of this host the process may use: CPUs, their physical cores, the CPU's way with bf16. Torch-free.

Read from /proc alone, under a root that a test can replace.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

# The processes that start ranks, as the kernel names them (15 characters). Their own CPU mask is the one that
# a launcher divides when it pins its ranks.
_LAUNCHER_PROCESSES = {
    "hydra_pmi_proxy",
    "orted",
    "prted",
    "mpirun",
    "mpiexec",
    "orterun",
    "mpirun.openmpi",  # Debian's names; Open MPI 4's mpirun starts the ranks of its own node itself
    "mpiexec.openmpi",
    "prterun",
    "mpispawn",
    "mpiexec.hydra",
    "slurmstepd",
}
_BF16_FLAGS = ("amx_bf16", "avx512_bf16")
EMULATED = "emulated"


@dataclass(frozen=True)
class Topology:
    """`cores`: the allowed CPU numbers grouped by physical core, ordered by package and core number.

    `launcher_cpus`: the CPUs of the MPI or Slurm process that started this one, None where there is none.
    `bf16`: "amx_bf16", "avx512_bf16", or "emulated" (correct, but slower than fp32).
    """

    cores: tuple[tuple[int, ...], ...]
    launcher_cpus: frozenset[int] | None
    bf16: str

    @property
    def allowed(self) -> frozenset[int]:
        return frozenset(cpu for core in self.cores for cpu in core)


def read(root: Path = Path("/")) -> Topology:
    """The topology as `root`/proc shows it for this process."""
    proc = root / "proc"
    allowed = parse_cpu_list(_status(proc / "self")["Cpus_allowed_list"])
    place: dict[int, tuple[int, int]] = {}
    flags: set[str] = set()
    for block in (proc / "cpuinfo").read_text().split("\n\n"):
        fields: dict[str, str] = dict(re.findall(r"^(.*?)[ \t]*:[ \t]*(.*)$", block, re.MULTILINE))
        if "processor" in fields:
            cpu = int(fields["processor"])
            place[cpu] = (int(fields.get("physical id", 0)), int(fields.get("core id", cpu)))
            flags = flags or set(fields.get("flags", fields.get("Features", "")).split())
    groups: dict[tuple[int, int], list[int]] = {}
    for cpu in sorted(allowed):
        # A CPU that cpuinfo does not describe is a core of its own.
        groups.setdefault(place.get(cpu, (-1, cpu)), []).append(cpu)
    return Topology(
        cores=tuple(tuple(groups[key]) for key in sorted(groups)),
        launcher_cpus=_launcher_cpus(proc),
        bf16=next((flag for flag in _BF16_FLAGS if flag in flags), EMULATED),
    )


def parse_cpu_list(text: str) -> frozenset[int]:
    """The kernel's list format: "0-2,8" is {0, 1, 2, 8}."""
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        low, _, high = part.partition("-")
        cpus.update(range(int(low), int(high or low) + 1))
    return frozenset(cpus)


def _status(process: Path) -> dict[str, str]:
    return dict(re.findall(r"^(\w+):[ \t]*(.*)$", (process / "status").read_text(), re.MULTILINE))


def _launcher_cpus(proc: Path) -> frozenset[int] | None:
    status = _status(proc / "self")
    while status["PPid"] != "0":
        try:
            status = _status(proc / status["PPid"])
        except OSError:  # hidden from this user (hidepid): as good as none
            return None
        if status["Name"] in _LAUNCHER_PROCESSES:
            return parse_cpu_list(status["Cpus_allowed_list"])
    return None
