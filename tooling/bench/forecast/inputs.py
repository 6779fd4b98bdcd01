"""Unmeasured inputs of a forecast: the network from its data sheet, and the speed of a node from its cores."""

import math
import re
from dataclasses import dataclass

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.plan.ccl import CORES_WORTH_A_WORKER
from tooling.bench.forecast.estimate import Estimate
from tooling.bench.forecast.models import Model

# The time of a message between two processes over TCP on a switched network. An all_reduce of 4 KiB between two
# containers took 32 us (benchmarks/results/collectives-zen5.json); a switch and two network cards add to this.
LATENCY_SECONDS = 50e-6
# The share of the network card's rate that an all_reduce gets. ccl gets 89 to 94% of the rate of plain TCP streams
# in both directions at once (the same file). TCP loses a twentieth to headers. Other tenants and limits of a
# cloud cost more: AWS, for example, limits one stream outside of a placement group to 5 Gbit/s on every instance.
BANDWIDTH_SHARE = Estimate(0.85, 0.5, 0.95)
# The share of the communication that can overlap with backward and does. With reserved cores all of it overlaps,
# although it takes memory bandwidth from computing. Without them hardly any does: the threads that wait for a
# collective also carry it out.
OVERLAP = Estimate(1, 0.5, 1)
NO_OVERLAP = Estimate(0, 0, 0.5)
# Floating-point operations per cycle of one core: two for each lane of a fused multiply-add, times the units of a
# core. AMX: one TDPBF16PS of 16 x 16 x 32 in 16 cycles (Intel's optimization reference manual). avx512_bf16: AMD's
# Zen 5.
CYCLE_FLOPS = {"avx2": 32, "avx512": 64, "avx512_bf16": 128, "amx": 1024}
# The share of CYCLE_FLOPS that training reaches. avx512: the Ice Lake guide's BERT-base reaches 0.3 on 32 cores at
# 3 GHz. avx512_bf16: 0.34 was measured on two cores of Zen 5 (345 GFLOP/s, 4 GHz assumed). amx: the Sapphire
# Rapids guide's DistilBERT reaches 0.06 at 3.2 GHz, and newer torch reaches more. avx2: assumed.
EFFICIENCY = {
    "avx2": Estimate(0.4, 0.2, 0.65),
    "avx512": Estimate(0.35, 0.2, 0.6),
    "avx512_bf16": Estimate(0.35, 0.2, 0.6),
    "amx": Estimate(0.12, 0.05, 0.3),
}

_UNITS = {"k": 1e3, "m": 1e6, "g": 1e9}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_NETWORK = re.compile(
    r"(?P<rate>\d+(?:\.\d+)?)(?P<unit>[kmg])(?:bit(?:/s)?)?(?:,(?P<time>\d+(?:\.\d+)?)(?P<seconds>us|ms|s))?", re.I
)


@dataclass(frozen=True)
class Link:
    """The network between any two nodes, in both directions at once. `bytes_per_second`: in each direction."""

    bytes_per_second: float
    latency_seconds: float = LATENCY_SECONDS


def parse_network(text: str) -> Link:
    """Parse `25g` or `10g,30us`: the bit rate of a node's network card, and the latency. Raises UsageError."""
    match = _NETWORK.fullmatch(text.strip())
    bits = float(match["rate"]) * _UNITS[match["unit"].lower()] if match else 0.0
    if not match or not bits:
        raise UsageError(
            f"--network is {text!r}, expected the bit rate of a node's network card (10g, 25g or 100g), "
            "optionally with the latency: 25g,40us"
        )
    if match["time"] is None:
        return Link(bits / 8)
    return Link(bits / 8, float(match["time"]) * _SECONDS[match["seconds"].lower()])


def link_inputs(link: Link) -> dict[str, Estimate]:
    """The bandwidth and latency of an all_reduce, from the data sheet of the network."""
    return {
        "bytes_per_second": BANDWIDTH_SHARE.scaled(link.bytes_per_second),
        "latency_seconds": Estimate.factor(link.latency_seconds, 3),
    }


def overlap(cores_per_rank: float) -> Estimate:
    """The overlap, which depends on whether the image reserves a core of each rank for communication."""
    return OVERLAP if cores_per_rank >= CORES_WORTH_A_WORKER else NO_OVERLAP


def samples_per_second(model: Model, length: float, cores: int, ghz: float, isa: str) -> Estimate:
    """The speed of a node, as a rough guess from its cores. `length`: tokens of a sample, without padding."""
    peak = cores * ghz * 1e9 * CYCLE_FLOPS[isa]
    return EFFICIENCY[isa].scaled(peak / model.flops(length))


def all_reduce_seconds(size: float, ranks: int, link: Link) -> float:
    """The time to all_reduce `size` bytes over `ranks` ranks: the faster of a ring and recursive doubling.

    A message of m bytes takes latency + m / bandwidth. A ring sends 2 (p - 1) messages of m / p bytes, and no
    algorithm sends fewer bytes. Doubling sends log2 p messages of m bytes (p rounded up to a power of two). The
    additions are not counted. Sources: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective
    Communication Operations in MPICH", IJHPCA 19(1), 2005, section 4.5; P. Patarasuk, X. Yuan, "Bandwidth optimal
    all-reduce algorithms for clusters of workstations", JPDC 69(2), 2009.
    """
    if ranks == 1:
        return 0.0
    ring = 2 * (ranks - 1) * (link.latency_seconds + size / ranks / link.bytes_per_second)
    rounds = math.ceil(math.log2(ranks))
    return min(ring, rounds * (link.latency_seconds + size / link.bytes_per_second))
