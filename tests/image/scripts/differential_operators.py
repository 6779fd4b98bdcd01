"""Compares this project's operators with torch's mathematical path in double precision, in random cases.

    run differential_operators.py [--cases N] [--seed S] [--seconds T]

Values, gradients and second derivatives; a second derivative may also be refused with an error, but must not be a
constant. Prints a line for each of the first differences, and last a summary. Exits with 1 after a difference.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from differential_attention import BF16, FP32, SUMMED, Found, laid_out, random_case, random_rows
from differential_second import of_attention, of_layers
from formula import OURS
from torch.nn import functional

from cpu_train_stack.operators import attention, decoder, dropout, dropout_operator, encoder, numbers
from cpu_train_stack.operators.adapted_linear import adapted_linear

DTYPES = (FP32, BF16)
Case = tuple[str, list[Found]]


def values(rng: random.Random, *shape: int, dtype: Any = FP32) -> Any:
    return (torch.randn(shape) * rng.choice((0.1, 1, 10))).to(dtype).requires_grad_()


def results(name: str, given: Any, found: Any, formula: Callable[..., Any], factor: float = 1.0) -> Case:
    """Compares outputs and gradients. `formula`: the outputs of the inputs in double precision."""
    found = found if isinstance(found, tuple) else (found,)
    outers = [torch.randn_like(each) for each in found]
    inputs = [tensor.detach().double().requires_grad_() for tensor in given]
    wide = formula(*inputs)
    wide = wide if isinstance(wide, tuple) else (wide,)
    gradients = torch.autograd.grad(found, given, outers)
    exact = torch.autograd.grad(wide, inputs, [outer.double() for outer in outers])
    every = []
    for number, (one, other) in enumerate(zip((*found, *gradients), (*wide, *exact), strict=True)):
        # A gradient may cancel: then its error is that of its terms, whose size is that of the outer gradients.
        size = float(other.detach().norm()) + 1e-2 * sum(float(outer.double().norm()) for outer in outers)
        rounding = 2.0**-8 if BF16 in [each.dtype for each in (*given, *found)] else SUMMED / 2
        every.append(Found(f"{number}", one, other, factor * rounding * size))
    return name, every


def attention_bf16(rng: random.Random) -> Case:
    case: Case = random_case(rng, BF16)
    return case


def attention_fp32(rng: random.Random) -> Case:
    case: Case = random_case(rng, FP32)
    return case


def attention_rows(rng: random.Random) -> Case:
    case: Case = random_rows(rng, rng.choice(DTYPES))
    return case


def rms_norm(rng: random.Random) -> Case:
    rows, features, dtype = rng.randint(1, 70), rng.choice((8, 15, 33, 64, 896)), rng.choice(DTYPES)
    stream, weight = values(rng, rows, features, dtype=dtype), values(rng, features)
    added = values(rng, rows, features, dtype=dtype) if rng.random() < 0.5 else None
    given = [stream, weight] if added is None else [stream, weight, added]
    found = decoder.norm(stream, added, weight, 1e-6, dtype)
    rounded = found[0].detach().double()

    def formula(stream: Any, weight: Any, *others: Any) -> Any:
        total = stream + others[0] if others else stream
        total = total + (rounded - total).detach()  # it is rounded before it is normalized
        return total, weight * total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-6)

    return results(f"{rows} x {features} {dtype} added {added is not None}", given, found, formula)


def layer_norm(rng: random.Random) -> Case:
    rows, features, dtype = rng.randint(1, 70), rng.choice((8, 15, 33, 64, 768)), rng.choice(DTYPES)
    added, stream = values(rng, rows, features, dtype=dtype), values(rng, rows, features)
    norm = torch.nn.LayerNorm(features, eps=1e-6)
    for weight in norm.parameters():
        weight.data = torch.randn(features)
    rule = dropout.Rule(rng.randrange(2**63), rng.choice((6554, 40_000))) if rng.random() < 0.7 else None
    keeps = dropout_operator.drop(torch.ones(rows, features), rule).double() if rule else 1.0
    found = encoder.normed_sum(added, stream, rule, norm, dtype)

    def formula(added: Any, stream: Any, weight: Any, bias: Any) -> Any:
        return functional.layer_norm(added * keeps + stream, (features,), weight, bias, 1e-6)

    given = [added, stream, norm.weight, norm.bias]
    return results(f"{rows} x {features} {dtype} {rule}", given, found, formula)


def gelu(rng: random.Random) -> Case:
    states = values(rng, rng.randint(1, 40_000), dtype=BF16)
    return results(f"{states.numel()}", [states], encoder.gelu(states), functional.gelu)


def swiglu(rng: random.Random) -> Case:
    size, dtype = rng.choice((1, 15, 31, 40_001)), rng.choice(DTYPES)
    gate, up = values(rng, size, dtype=dtype), values(rng, size, dtype=dtype)
    return results(
        f"{size} {dtype}", [gate, up], decoder.gated(gate, up), lambda gate, up: functional.silu(gate) * up
    )


def rotary(rng: random.Random) -> Case:
    rows, heads, tokens, features = (
        rng.randint(1, 2),
        rng.randint(1, 4),
        rng.randint(1, 40),
        2 * rng.randint(1, 64),
    )
    states = laid_out(rng, values(rng, rows, heads, tokens, features, dtype=rng.choice(DTYPES)))
    states = states if states.stride(3) == 1 else states.detach().contiguous().requires_grad_()
    cosines, sines = (torch.randn(rng.choice((1, rows)), tokens, features) for _ in range(2))
    if len(cosines) != len(sines):
        sines = sines[:1].expand(len(cosines), -1, -1)
    dtype = rng.choice(DTYPES)

    def formula(states: Any) -> Any:
        first, second = states.chunk(2, -1)
        return states * cosines[:, None].double() + torch.cat((-second, first), -1) * sines[:, None].double()

    name = f"{tuple(states.shape)} {states.dtype} to {dtype}"
    return results(name, [states], decoder.rotated(states, cosines, sines, dtype), formula)


def lora(rng: random.Random) -> Case:
    rows, inputs, outputs, rank = rng.randint(1, 70), rng.randint(8, 90), rng.randint(8, 90), rng.randint(1, 16)
    dtype, rate = rng.choice(DTYPES), rng.choice((0.0, 0.5))
    states, down, up = (
        values(rng, rows, inputs, dtype=dtype),
        values(rng, rank, inputs),
        values(rng, outputs, rank),
    )
    weight, bias = torch.randn(outputs, inputs), torch.randn(outputs) if rng.random() < 0.5 else None
    drop = functional.dropout(torch.ones(rows, inputs), rate).to(dtype)
    found = adapted_linear(states, weight, bias, down, up, 0.7, dtype, states * drop if rate else None)

    def formula(states: Any, down: Any, up: Any) -> Any:
        straight = functional.linear(states, weight.double(), None if bias is None else bias.double())
        return straight + 0.7 * (states * drop.double() @ down.t() @ up.t())

    return results(
        f"{rows} x {inputs} x {outputs} rank {rank} {dtype} p {rate}", [states, down, up], found, formula, 4
    )


def drops(rng: random.Random) -> Case:
    states = laid_out(rng, values(rng, 2, rng.randint(1, 4), rng.randint(1, 40), 33, dtype=rng.choice(DTYPES)))
    p, seed = rng.choice((0.01, 0.1, 0.9)), rng.randrange(2**31)
    torch.manual_seed(seed)
    found = functional.dropout(states, p)
    torch.manual_seed(seed)
    keeps = functional.dropout(torch.ones_like(states.detach(), dtype=FP32), p).double()
    return results(f"{tuple(states.shape)} {states.dtype} p {p}", [states], found, lambda states: states * keeps)


def second_derivatives_of_attention(rng: random.Random) -> Case:
    case: Case = of_attention(rng)
    return case


def second_derivatives_of_layers(rng: random.Random) -> Case:
    case: Case = of_layers(rng)
    return case


KINDS = (
    attention_bf16,
    attention_fp32,
    attention_rows,
    attention_bf16,
    rms_norm,
    layer_norm,
    gelu,
    swiglu,
    rotary,
    lora,
    drops,
    second_derivatives_of_attention,
    second_derivatives_of_layers,
)
# Those that need no AVX-512.
ANYWHERE = (drops, lora)


def differences(kind: Callable[[random.Random], Case], seed: int, number: int) -> tuple[bool, list[str]]:
    """Whether there was nothing to compare, because it was refused or is torch's own, and what is different."""
    rng = random.Random(f"{seed} {number}")
    torch.manual_seed(rng.randrange(2**31))
    try:
        name, every = kind(rng)
    except Exception as error:  # noqa: BLE001 - is a difference
        return False, [f"{kind.__name__} {number}: {type(error).__name__}: {error}"]
    found = []
    for each in every:
        distance = float((each.found.detach().double() - each.exact.detach()).norm())
        if not distance <= each.bound:
            distances = f"{each.name} is off by {distance:.3g}, more than {each.bound:.3g}"
            found.append(f"{kind.__name__} {number}: {name}: {distances}")
    return not every, found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600)
    options = parser.parse_args()
    kinds = KINDS if numbers.supported() and OURS.__module__ == attention.__name__ else ANYWHERE
    begin, counts, empty, different = time.monotonic(), Counter[str](), 0, 0
    for number, kind in zip(range(options.cases), itertools.cycle(kinds), strict=False):
        if time.monotonic() - begin > options.seconds:
            break
        is_empty, lines = differences(kind, options.seed, number)
        counts[kind.__name__] += 1
        empty += is_empty
        different += bool(lines)
        if lines and different <= 20:
            print(*lines, sep="\n", flush=True)
    left_out = sorted({kind.__name__ for kind in KINDS} - set(counts))
    each = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
    print(
        f"operators: {sum(counts.values())} cases, {different} differences, {empty} refused or torch's own (seed "
        f"{options.seed}, {time.monotonic() - begin:.0f} s): {each}"
        + (f"; not on this CPU: {', '.join(left_out)}" if left_out else "")
    )
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
