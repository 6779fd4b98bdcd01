"""Measures the matrix products of a job's step, and counts the operations of its batches. Prints one line of JSON.

    run ceiling.py JOB 8x384 32x87 ...

The products of the first shape are timed one by one, in bf16 and in fp32, in blocks. The best block counts.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks import jobs, products
from benchmarks.products import Product

BLOCK_SECONDS = 0.15
BLOCKS = 3
# Products with a smaller share of the step's operations are not timed.
LEAST_SHARE = 0.01
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def gflops(product: Product, dtype: Any) -> float:
    """The rate of the best block."""
    left = torch.randn(product.count, product.m, product.k).to(dtype)
    right = torch.randn(product.count, product.k, product.n).to(dtype)
    if product.count == 1:
        left, right = left[0], right[0]
    multiply = torch.mm if product.count == 1 else torch.bmm
    best = float("inf")
    calls = 1
    for block in range(BLOCKS + 1):
        started = time.perf_counter()
        for _ in range(calls):
            multiply(left, right)
        seconds = (time.perf_counter() - started) / calls
        if block:  # the first block only determines the number of calls in a block
            best = min(best, seconds)
        calls = max(1, min(1000, round(BLOCK_SECONDS / seconds)))
    return product.flops / best / 1e9


def processor(cpuinfo: str) -> dict[str, Any]:
    """The CPU's name, its clock in GHz, and its bf16 instructions or None, from the text of /proc/cpuinfo."""
    fields = dict(re.findall(r"^(model name|flags|cpu MHz)\s*:\s*(.*)$", cpuinfo, re.MULTILINE))
    flags = fields.get("flags", "").split()
    return {
        "cpu": fields.get("model name", "unknown"),
        "ghz": round(float(fields.get("cpu MHz", 0)) / 1000, 3),
        "bf16": next((flag for flag in ("amx_bf16", "avx512_bf16") if flag in flags), None),
    }


def main(job_name: str, *shapes: str) -> None:
    job = jobs.BY_NAME[job_name]
    counted = {}
    for shape in shapes:
        samples, length = map(int, shape.split("x"))
        counted[shape] = products.of_step(job, samples, length)
    step_flops = products.flops(counted[shapes[0]])
    rows = []
    for product, times in counted[shapes[0]].most_common():
        flops = product.flops * times
        if flops >= LEAST_SHARE * step_flops:
            rates = {name: gflops(product, dtype) for name, dtype in DTYPES.items()}
            rows.append({**vars(product), "times": times, "share": flops / step_flops, "gflops": rates})
    print(
        json.dumps(
            {
                "flops": {shape: products.flops(found) for shape, found in counted.items()},
                "products": rows,
                "threads": torch.get_num_threads(),
                **processor(Path("/proc/cpuinfo").read_text()),
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
