"""Attention in bfloat16, with or without dropout, for CPUs with AVX512-BF16 or AMX (kernels/attention_bf16*.cpp).

A block of scores stays in the cache. The forward pass stores two numbers per query, and the backward pass
recomputes the rest. Scores, softmax and sums are float32. The weights are rounded to bfloat16 before their
product with the values, as in torch's fused kernel, which has no dropout.

Rows that are end to end are computed in float32 too, without rounding (kernels/attention_float32_rows.cpp).
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from cpu_train_stack.operators import attention_formula, attention_mask, library
from cpu_train_stack.operators.dropout import Described, Rule, described
from cpu_train_stack.operators.registration import Operator, has_memory
from cpu_train_stack.operators.transforms import is_compiling, or_by_formula

# The KERNEL of the C functions attention_KERNEL_forward and _backward.
_KERNELS = {torch.bfloat16: "bfloat16", torch.float32: "float32_rows"}
# As in kernels/attention_bf16.hpp: the keys of one tile of the backward pass, with AMX and without.
_TILE = {True: 512, False: 1024}


class _Tensor(ctypes.Structure):
    _fields_ = [("values", ctypes.c_void_p), ("steps", ctypes.c_size_t * 3)]


class _Attention(ctypes.Structure):
    """As in kernels/attention_bf16.hpp. `sizes`: batches, heads, heads per key, queries, keys, features."""

    _fields_ = [
        ("sizes", ctypes.c_size_t * 6),
        ("query", _Tensor),
        ("key", _Tensor),
        ("value", _Tensor),
        ("out", _Tensor),
        ("wide_out", _Tensor),
        ("mask", attention_mask.Mask),
        ("scale", ctypes.c_float),
        ("causal", ctypes.c_uint32),
        ("amx", ctypes.c_uint32),
        ("rule", Described),
        ("softmax", ctypes.c_void_p),
        ("starts", ctypes.c_void_p),
    ]


class _Gradients(ctypes.Structure):
    _fields_ = [("out", _Tensor), ("query", _Tensor), ("key", _Tensor), ("value", _Tensor)]


def supported() -> bool:
    """Whether this CPU has the kernel's instructions."""
    return bool(library.library().attention_bfloat16_supported())


def amx_permitted() -> bool:
    """Whether this CPU has AMX and Linux (5.16 or later) lets this process use it, from now on."""
    return bool(library.library().attention_amx_permitted())


def attention(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    causal: bool,
    factor: float,
    rule: Rule,
    starts: Any = None,
    amx: bool = False,
) -> Any:
    """Attention of bfloat16 tensors. See attention.Kernel for shapes. Returns bfloat16.

    `starts`: where rows begin that are end to end in one batch, and the number of all tokens, int64 [rows + 1].
    The tokens of a row attend to each other only; `mask` is None. `amx`: compute products with AMX; requires
    `amx_permitted()`.
    """
    query, key, value = map(_contiguous_rows, (query, key, value))
    # The backward pass sums over one tile of keys itself. It never reads the output, which a script may change.
    has_tiles = query.dtype is torch.bfloat16 and key.shape[2] > _TILE[amx]
    if has_tiles and starts is not None and not is_compiling():  # in a graph, a row may have any length
        has_tiles = _longest(starts) > _TILE[amx]
    how = causal, factor, rule.seed, rule.threshold, amx
    return FUSED(query, key, value, mask, starts, has_tiles, *how)


def float32_rows(
    query: Any, key: Any, value: Any, mask: None, causal: bool, factor: float, rule: Rule, starts: Any
) -> Any:
    """Attention of rows that are end to end, computed in float32. Returns the dtype of `query`.

    `mask` is None; for `starts`, see `attention`.
    """
    wide = query.float(), key.float(), value.float()
    return attention(*wide, mask, causal, factor, rule, starts).to(query.dtype)


def _forward(
    query: Any, key: Any, value: Any, mask: Any, starts: Any, has_tiles: bool, *how: Any
) -> tuple[Any, Any, Any]:
    """Tensors are [batch, heads, queries or keys, features] with contiguous features.

    Masks may broadcast. Keys and values may have fewer heads: consecutive heads of the query share one. `how`: the
    last arguments of `_described`.
    """
    out = _empty(query, query.shape)
    wide = torch.empty(query.shape, dtype=torch.float32, device="cpu") if has_tiles else None
    softmax = torch.empty((*query.shape[:3], 2), dtype=torch.float32, device="cpu")
    if has_memory(query):
        call = _described(query, key, value, mask, starts, wide, softmax, *how)
        call.out = _tensor(out)
        _run(getattr(library.library(), f"attention_{_KERNELS[query.dtype]}_forward"), call)
    return out, wide, softmax


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:5], *output[1:])
    ctx.how = inputs[6:]


@or_by_formula(attention_formula.formula)
def _backward(ctx: Any, outer: Any, *_by_kept: Any) -> Any:
    return (*FUSED_GRADIENTS(outer, *ctx.saved_tensors, *ctx.how), *[None] * 8)


def _gradients(outer: Any, *given: Any) -> Any:
    """`given`: the arguments of `_described`."""
    query, key, *_others = given
    # Gradients of every head, also of heads that share keys and values.
    each = (*query.shape[:2], *key.shape[2:])
    found = _empty(query, query.shape), _empty(key, each), _empty(key, each)
    if has_memory(query):
        outer = _contiguous_rows(outer)
        run = getattr(library.library(), f"attention_{_KERNELS[query.dtype]}_backward")
        _run(run, _described(*given), _Gradients(*map(_tensor, (outer, *found))))
    return (found[0], *(_summed(gradient, key.shape[1]) for gradient in found[1:]))


def _run(kernel: Any, *structures: ctypes.Structure) -> None:
    """Raises RuntimeError, like torch's allocator, if a thread cannot allocate its working memory."""
    missing = kernel(*map(ctypes.byref, structures))
    if missing:
        raise RuntimeError(
            f"attention ran out of memory. It needs {missing:,} bytes for each of {torch.get_num_threads()} "
            "threads: use a smaller batch or shorter sequences"
        )


def _contiguous_rows(tensor: Any) -> Any:
    return tensor if tensor.stride(3) == 1 else tensor.contiguous()


def _empty(like: Any, shape: Any) -> Any:
    """[batch, heads, rows, features] with rows before heads in memory, as linear layers expect.

    No view: nobody could change one in place.
    """
    _batches, heads, rows, features = shape
    return like.new_empty_strided(shape, (heads * rows * features, features, heads * features, 1))


def _summed(gradient: Any, heads: int) -> Any:
    """The gradient of shared keys or values: the sum over the heads that share them."""
    sharing = gradient.shape[1] // heads
    return gradient if sharing == 1 else gradient.unflatten(1, (heads, sharing)).sum(2)


def _tensor(tensor: Any) -> _Tensor:
    return _Tensor(tensor.data_ptr(), (ctypes.c_size_t * 3)(*tensor.stride()[:3]))


def _longest(starts: Any) -> int:
    return int(starts.diff().max())


def _described(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    starts: Any,
    wide: Any,
    softmax: Any,
    causal: bool,
    factor: float,
    seed: Any,
    threshold: int,
    amx: bool,
) -> _Attention:
    batches, heads, queries, features = query.shape
    keys = key.shape[2]
    if starts is not None:
        batches, queries = len(starts) - 1, _longest(starts)
        keys = queries
    sizes = batches, heads, heads // key.shape[1], queries, keys, features
    return _Attention(
        (ctypes.c_size_t * 6)(*sizes),
        *map(_tensor, (query, key, value)),
        _Tensor(),
        _Tensor() if wide is None or not wide.numel() else _tensor(wide),
        attention_mask.described(mask),
        factor,
        int(causal),
        int(amx),
        described(seed, threshold),
        softmax.data_ptr(),
        None if starts is None else starts.data_ptr(),
    )


_HOW = "bool causal, float factor, Tensor? seed, int threshold, bool amx)"
_READ = "Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor? starts"
FUSED = Operator(
    f"fused_attention({_READ}, bool has_tiles, {_HOW} -> (Tensor, Tensor, Tensor)",
    *(_forward, _save, _backward),
    returns_first=True,
)
FUSED_GRADIENTS = Operator(
    f"fused_attention_gradients(Tensor outer, {_READ}, Tensor? wide, Tensor softmax, {_HOW} "
    "-> (Tensor, Tensor, Tensor)",
    _gradients,
)
