"""Random cases of attention for differential_operators.py: what to compute, and what it has to be."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

import torch
from formula import OURS, TORCHS
from torch.nn.attention import SDPBackend, sdpa_kernel

from cpu_train_stack.operators import attention

BF16, FP32 = torch.bfloat16, torch.float32
MASKS = ("none", "none", "boolean", "float32", "bfloat16", "padding", "lowest", "hidden row")
# From here on, a row has several tiles of keys with AMX: its gradients come from rounded weights.
TILE = 512
# A rounding to bfloat16, and the errors of float32 sums, of their terms' sizes.
ROUNDED, SUMMED = {BF16: 2.0**-8, FP32: 0.0}, 2.0**-19


@dataclass(frozen=True)
class Found:
    """A tensor, what it has to be, and the most by which the norm of the difference may differ from zero."""

    name: str
    found: Any
    exact: Any
    bound: float


def laid_out(rng: random.Random, tensor: Any) -> Any:
    """The same numbers in another layout of memory: rows before heads, with gaps, features apart, broadcast."""
    kind = rng.randrange(5)
    if kind == 1:
        tensor = tensor.transpose(1, 2).contiguous().transpose(1, 2)
    elif kind == 2:
        tensor = torch.cat((tensor, torch.full_like(tensor, math.nan)), -1)[..., : tensor.shape[-1]]
    elif kind == 3:
        tensor = tensor.transpose(2, 3).contiguous().transpose(2, 3)
    elif kind == 4:
        tensor = tensor[:, :1].expand(tensor.shape)
    return tensor.detach().requires_grad_()


def mask_of(rng: random.Random, kind: str, shape: tuple[int, ...], dtype: Any) -> Any:
    """A mask that may broadcast. In all but "hidden row", every query has a key."""
    if kind == "none":
        return None
    batches, heads, queries, keys = shape
    narrow = rng.choice((batches, 1)), rng.choice((heads, 1)), rng.choice((queries, 1)), keys
    if kind in ("float32", "bfloat16"):
        mask = torch.randn(narrow) * rng.choice((1, 30))
        mask = mask.to(BF16 if kind == "bfloat16" and dtype is BF16 else FP32)
        return mask.mT.contiguous().mT if rng.random() < 0.3 else mask
    seen = torch.rand(narrow) < rng.choice((0.3, 0.9))
    seen[..., rng.randrange(keys)] = True
    if kind in ("lowest", "hidden row") and rng.random() < 0.8:
        seen[:, :, rng.randrange(narrow[2])] = False
    if kind == "boolean" or (kind == "hidden row" and rng.random() < 0.5):
        return seen
    lowest = torch.finfo(dtype).min if kind in ("padding", "lowest") else -math.inf
    return torch.zeros(narrow, dtype=dtype).masked_fill(~seen, lowest)


def kept(shape: tuple[int, ...], dtype: Any, p: float, seed: int) -> Any:
    """What dropout keeps, times 1 / (1 - p): attention to keys that are all alike, whose values are units."""
    batches, heads, queries, keys = shape
    features = max(keys, 8)
    zero = (torch.zeros(batches, heads, count, features, dtype=dtype) for count in (queries, keys))
    units = torch.eye(keys, features, dtype=dtype).expand(batches, heads, keys, features)
    torch.manual_seed(seed)
    return (OURS(*zero, units, dropout_p=p)[..., :keys] != 0).double() / (1 - round(p * 65536) / 65536)


def scores_of(query: Any, key: Any, mask: Any, causal: bool, factor: float) -> Any:
    """With finite lowest numbers as in float32, beside which a score is lost."""
    scores = query @ key.mT * factor
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return scores.masked_fill(hidden, -math.inf)
    if mask is None:
        return scores
    if mask.dtype is torch.bool:
        return scores.masked_fill(~mask, -math.inf)
    wide = mask.double()
    lost = (wide < -1e37) & wide.isfinite()
    return scores + wide - (lost * scores).detach()


def weights_of(scores: Any) -> Any:
    """Zeros for a query that sees no key, as torch has it since 2.5."""
    hidden = (scores == -math.inf).all(-1, keepdim=True)
    return scores.masked_fill(hidden, 0).softmax(-1).masked_fill(hidden, 0)


def random_case(rng: random.Random, dtype: Any) -> tuple[str, list[Found]]:
    batches, fewer, sharing = rng.randint(1, 2), rng.randint(1, 2), rng.choice((1, 1, 2, 3))
    queries, keys = (
        rng.choice((1, 8, 17, 48, 65, rng.randint(1, 130))),
        rng.choice((1, 16, 65, rng.randint(1, 260))),
    )
    if rng.random() < 0.06:
        queries, keys = rng.randint(1, 60), rng.choice((520, 1024, 1030, 1100))
    features = rng.choice((1, 8, 32, 64, 80, rng.randint(1, 128)))
    shape = batches, fewer * sharing, queries, keys
    causal = rng.random() < 0.2
    kind = "none" if causal else rng.choice(MASKS)
    p = rng.choice((0.0, 0.1, 0.25, 0.5) if dtype is BF16 else (0.1, 0.25, 0.5))
    factor = rng.choice((features**-0.5, 0.1, 1.0, 3.0))
    sizes = (shape[1], queries), (fewer, keys), (fewer, keys)
    given = [laid_out(rng, torch.randn(batches, heads, count, features).to(dtype)) for heads, count in sizes]
    mask = mask_of(rng, kind, shape, dtype)
    outer = torch.randn(batches, shape[1], queries, features).to(dtype)
    seed = rng.randrange(2**31)
    keeps = kept(shape, dtype, p, seed) if p else torch.ones((), dtype=torch.float64)
    torch.manual_seed(seed)
    options = {"attn_mask": mask, "is_causal": causal, "scale": factor, "enable_gqa": sharing > 1}
    out = OURS(*given, dropout_p=p, **options)
    found = [out, *torch.autograd.grad(out, given, outer.to(out.dtype))]
    name = f"{shape} features {features} sharing {sharing} mask {kind} causal {causal} p {p} scale {factor:.3g}"
    if not p and "FusedAttention" not in out.grad_fn.name():
        return name, []  # torch's own kernel, which sums a query's gradients less exactly
    return name, compared(given, found, outer, keeps, dtype, mask, causal, factor)


def compared(
    given: Any, found: Any, outer: Any, keeps: Any, dtype: Any, mask: Any, causal: bool, factor: float
) -> list[Found]:
    """By torch's mathematical path in double precision; with dropout or lowest numbers, by its formula."""
    inputs = [tensor.detach().double().requires_grad_() for tensor in given]
    sharing = inputs[0].shape[1] // inputs[1].shape[1]
    query, key, value = inputs[0], *(tensor.repeat_interleave(sharing, 1) for tensor in inputs[1:])
    scores = scores_of(query, key, mask, causal, factor)
    weights = weights_of(scores)
    exact_out = (weights * keeps) @ value
    has_lowest = (
        mask is not None and mask.is_floating_point() and bool((mask == torch.finfo(mask.dtype).min).any())
    )
    if keeps.dim() == 0 and not has_lowest:
        wide = mask if mask is None or mask.dtype is torch.bool else mask.double()
        with sdpa_kernel(SDPBackend.MATH):
            torchs = TORCHS(query, key, value, attn_mask=wide, is_causal=causal, scale=factor)
        torch.testing.assert_close(torchs, exact_out)  # the formula is torch's
        exact_out = torchs
    exact = [exact_out, *torch.autograd.grad(exact_out, inputs, outer.double(), retain_graph=True)]
    with torch.no_grad():
        sizes = sizes_of_terms(query, key, value, scores, weights, keeps, outer.double(), factor, dtype)
        for place in (2, 3):  # of heads that share keys
            sizes[place] = sizes[place].unflatten(1, (-1, sharing)).sum(2)
        bounds = [float(size.norm()) + 1e-30 for size in sizes]
    names = ("out", "query", "key", "value")
    return [Found(*each) for each in zip(names, found, exact, bounds, strict=True)]


def sizes_of_terms(
    query: Any, key: Any, value: Any, scores: Any, weights: Any, keeps: Any, outer: Any, factor: float, dtype: Any
) -> list[Any]:
    """The most that the errors of one rounding of each operand and of the sums in float32 can add up to."""
    rounded = ROUNDED[dtype]
    size = query.abs() @ key.abs().mT * factor + scores.masked_fill(scores.abs() > 1e30, 0).abs()
    blurred = rounded + SUMMED * (2 + size)  # of a weight
    through, through_size = keeps * (outer @ value.mT), keeps * (outer.abs() @ value.abs().mT)
    terms = (weights * through_size).sum(-1, keepdim=True)
    by_scores = weights * (through - (weights * through).sum(-1, keepdim=True)) * factor
    # Both parts of the difference have errors of sums, and the weights those of their scores.
    blur = SUMMED * (2 + size)
    inexact = weights * factor * (through_size + terms) * (blur + (blur * weights).sum(-1, keepdim=True))
    if key.shape[2] > TILE:
        inexact = inexact + weights * terms * factor * rounded
    error = by_scores.abs() * rounded + inexact
    used = weights * keeps
    return [
        (used * blurred) @ value.abs() + (used @ value).abs() * rounded,
        error @ key.abs() + (by_scores @ key).abs() * rounded,
        error.mT @ query.abs() + (by_scores.mT @ query).abs() * rounded,
        (used * blurred).mT @ outer.abs() + (used.mT @ outer).abs() * rounded,
    ]


def random_rows(rng: random.Random, dtype: Any) -> tuple[str, list[Found]]:
    """Rows that are end to end, each of which attends to itself."""
    lengths = [rng.choice((0, 1, rng.randint(1, 90))) for _ in range(rng.randint(1, 5))] + [rng.randint(1, 90)]
    if rng.random() < 0.1:
        lengths.append(rng.choice((530, 1030)))
    starts = torch.tensor([0, *lengths]).cumsum(0)
    fewer, sharing, features = rng.randint(1, 2), rng.choice((1, 2)), rng.choice((8, 40, 64))
    causal, p, tokens, longest = rng.random() < 0.5, rng.choice((0.0, 0.2)), sum(lengths), max(lengths)
    heads = fewer * sharing
    given = [laid_out(rng, torch.randn(1, each, tokens, features).to(dtype)) for each in (heads, fewer, fewer)]
    outer, seed = torch.randn(1, heads, tokens, features).to(dtype), rng.randrange(2**31)
    torch.manual_seed(seed)
    query, key, value = given
    out = attention.joined(query, key, value, starts, causal, 0.3, p)
    name = f"rows {lengths} heads {heads} sharing {sharing} features {features} causal {causal} p {p}"
    found = [out, *torch.autograd.grad(out, given, outer)]
    keeps = torch.ones((), dtype=torch.float64)
    if p:
        units = torch.cat([torch.eye(length, max(longest, 8)) for length in lengths])[None, None].to(dtype)
        torch.manual_seed(seed)
        keeps = attention.joined(0 * units.expand(1, heads, -1, -1), units, units, starts, False, 1.0, p)
        keeps = (keeps != 0).double() / (1 - round(p * 65536) / 65536)
    results: list[Found] = []
    for first, end in zip(starts.tolist(), starts.tolist()[1:], strict=False):
        if first < end:
            part = [tensor[:, :, first:end] for tensor in given]
            mine = [tensor[:, :, first:end] for tensor in found]
            own = keeps if keeps.dim() == 0 else keeps[:, :, first:end, : end - first]
            results += compared(part, mine, outer[:, :, first:end], own, dtype, None, causal, 0.3)
    return name, results
