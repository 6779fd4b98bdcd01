"""What a node should train, from its cores alone: a guess for where nothing was measured."""

from __future__ import annotations

from tooling.forecast.estimate import Estimate
from tooling.forecast.models import Model

# Operations in a cycle of one core: two for each lane of a fused multiply-add, by the units that a core has. AMX:
# one TDPBF16PS of 16 x 16 x 32 in 16 cycles (Intel's optimization reference manual); avx512_bf16: AMD's Zen 5.
CYCLE_FLOPS = {"avx2": 32, "avx512": 64, "avx512_bf16": 128, "amx": 1024}
# The share of it that training reaches. avx512: 0.3 is what the Ice Lake guide's BERT-base comes to on 32 cores at
# 3 GHz; avx512_bf16: 0.34 was measured on two cores of Zen 5 (345 GFLOP/s, 4 GHz assumed); amx: 0.06 is what the
# Sapphire Rapids guide's DistilBERT comes to at 3.2 GHz, and newer torch does better; avx2: assumed.
EFFICIENCY = {
    "avx2": Estimate(0.4, 0.2, 0.65),
    "avx512": Estimate(0.35, 0.2, 0.6),
    "avx512_bf16": Estimate(0.35, 0.2, 0.6),
    "amx": Estimate(0.12, 0.05, 0.3),
}


def samples_per_second(model: Model, length: int, cores: int, ghz: float, isa: str) -> Estimate:
    """What a node of so many cores should train, within the wide error bars of EFFICIENCY."""
    peak = cores * ghz * 1e9 * CYCLE_FLOPS[isa]
    return EFFICIENCY[isa].scaled(peak / model.flops(length))
