"""The way between nodes, and what an all_reduce over it takes."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from tooling.basis.errors import UsageError

# From one process to another over TCP on a switched network. An all_reduce of 4 KiB between two containers took
# 32 us (docs/collectives.md); a switch and two network cards come on top.
LATENCY_SECONDS = 50e-6

_UNITS = {"k": 1e3, "m": 1e6, "g": 1e9}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_NETWORK = re.compile(
    r"(?P<rate>\d+(?:\.\d+)?)(?P<unit>[kmg])(?:bit(?:/s)?)?(?:,(?P<time>\d+(?:\.\d+)?)(?P<seconds>us|ms|s))?", re.I
)


@dataclass(frozen=True)
class Link:
    """Between any two nodes, both ways at once. `bytes_per_second`: of one way."""

    bytes_per_second: float
    latency_seconds: float = LATENCY_SECONDS


def parse(text: str) -> Link:
    """`25g`, `10g,30us`: bits a second of a node's network card, and a message's time. Raises UsageError."""
    match = _NETWORK.fullmatch(text.strip())
    bits = float(match["rate"]) * _UNITS[match["unit"].lower()] if match else 0.0
    if not match or not bits:
        raise UsageError(
            f"--network is {text!r}, expected bits a second as in 10g, 25g or 100g, and if known a message's "
            "time: 25g,40us"
        )
    if match["time"] is None:
        return Link(bits / 8)
    return Link(bits / 8, float(match["time"]) * _SECONDS[match["seconds"].lower()])


def all_reduce_seconds(size: float, ranks: int, link: Link) -> float:
    """Seconds for `size` bytes over `ranks` ranks, by a ring or by recursive doubling, the faster of both.

    A message of m bytes takes latency + m / bandwidth. A ring has 2 (p - 1) messages of m / p bytes, which no
    algorithm beats in bytes; doubling has log2 p of m bytes (p rounded up to a power of two). Adding up is counted
    as no time. Sources: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations
    in MPICH", IJHPCA 19(1), 2005, section 4.5; P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for
    clusters of workstations", JPDC 69(2), 2009.
    """
    if ranks == 1:
        return 0.0
    ring = 2 * (ranks - 1) * (link.latency_seconds + size / ranks / link.bytes_per_second)
    rounds = math.ceil(math.log2(ranks))
    return min(ring, rounds * (link.latency_seconds + size / link.bytes_per_second))
