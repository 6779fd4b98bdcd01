"""What is taken for granted of a cluster of which nothing was measured, and why its error bars are as wide."""

from __future__ import annotations

from typing import TypedDict

from entrypoints.plan.ccl import CORES_WORTH_A_WORKER
from tooling.forecast.estimate import Estimate
from tooling.forecast.network import Link

# Of the network card's rate, what an all_reduce gets. ccl gets 89 to 94% of what plain TCP streams move both ways
# at once (docs/bench.md); TCP loses a twentieth to headers, a cloud's neighbours and limits more: AWS, for
# example, gives one stream 5 Gbit/s outside of a placement group, whatever the instance has.
BANDWIDTH_SHARE = Estimate(0.85, 0.5, 0.95)


# Of communication that could go on beside backward, how much does. With cores of its own all, though it takes
# memory bandwidth from computing; without, hardly any: whoever waits for a collective moves it on.
OVERLAP = Estimate(1, 0.5, 1)
NO_OVERLAP = Estimate(0, 0, 0.5)


def overlap(cores_of_rank: float) -> Estimate:
    """By whether the image keeps a core of a rank for communication."""
    return OVERLAP if cores_of_rank >= CORES_WORTH_A_WORKER else NO_OVERLAP


class LinkInputs(TypedDict):
    bytes_per_second: Estimate
    latency_seconds: Estimate


def link_inputs(link: Link) -> LinkInputs:
    """A link by its data sheet."""
    return {
        "bytes_per_second": BANDWIDTH_SHARE.scaled(link.bytes_per_second),
        "latency_seconds": Estimate.factor(link.latency_seconds, 3),
    }
