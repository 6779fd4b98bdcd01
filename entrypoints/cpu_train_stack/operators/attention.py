"""Attention with the image's kernels, if they are faster than torch's.

torch's fused kernel for CPUs has no dropout: with dropout, scaled_dot_product_attention is a chain of operators
over all scores, in float32 also for bfloat16 tensors. attention_fp32 replaces it for float32, and for bfloat16 on
CPUs without bf16 instructions. attention_bf16 replaces it for bfloat16 on other CPUs, also without dropout. Rows
without padding (operators.unpadded) have kernels for both types, with and without dropout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Callable

from cpu_train_stack.machine.cpus import EMULATED
from cpu_train_stack.operators import attention_mask
from cpu_train_stack.operators.attention_rule import MeasuredAttention
from cpu_train_stack.operators.bf16_products import computed_in
from cpu_train_stack.operators.dropout import Rule, are_plain, draw_rule
from cpu_train_stack.operators.transforms import can_trace, is_compiling, is_left_to_torch, replace_attention

# Arguments: query [batch, heads, queries, features], key and value [batch, heads, keys, features], mask
# (attention_mask.readable) or None, whether attention is causal, the factor of the scores, the dropout rule.
# Returns [batch, heads, queries, features] in the query's dtype.
Kernel = Callable[[Any, Any, Any, Any, bool, float, Rule], Any]
NO_DROPOUT = Rule(None, 0)
# Without dropout and with fewer queries, torch's kernel is faster: ours first rearranges all keys. On a Xeon with
# AMX, forward, 512 keys of 64 features, us by torch's kernel and by ours: 1 query 6.2 and 14.6, 8 queries 16.8 and
# 17.0, 16 queries 20.9 and 18.4.
FEWEST_QUERIES = 8


@dataclass(frozen=True)
class KernelChoice:
    """The kernels of this process by dtype, which are always used with dropout.

    `plain`: the dtypes for which they are also used without dropout, unless `measured` decides. `joined`: the
    kernels for rows that are end to end (attention_bf16), by dtype.
    """

    kernels: dict[Any, Kernel]
    plain: frozenset[Any] = frozenset()
    joined: Mapping[Any, Callable[..., Any]] = field(default_factory=dict)
    measured: MeasuredAttention | None = None


# Of this process, empty before the first `install`.
_INSTALLED: list[KernelChoice] = []


def install(bf16: str, widened: bool, measured: MeasuredAttention | None = None) -> None:
    """Replace torch.nn.functional's attention.

    `bf16`: as in Topology. `widened`: bfloat16 products are in float32. `measured`: decides without dropout.
    """
    from torch.nn import functional

    original = getattr(functional, "scaled_dot_product_attention", None)  # since 2.0
    choice = replace(choose(bf16, widened), measured=measured)
    if original is not None and choice.kernels:
        _INSTALLED[:] = [choice]
        if can_trace():
            import torch

            for state in (_is_flash_enabled, _threads):  # which torch.compile cannot trace
                torch.compiler.assume_constant_result(state)
        replace_attention(replaced(original, choice))


def choose(bf16: str, widened: bool) -> KernelChoice:
    """The kernels for this CPU. For the arguments, see `install`."""
    import torch

    from cpu_train_stack.operators import attention_bf16, attention_fp32

    wide = [torch.float32, *([torch.bfloat16] if widened else [])] if attention_fp32.supported() else []
    chosen: dict[Any, Kernel] = dict.fromkeys(wide, attention_fp32.attention)
    joined = dict.fromkeys(wide, attention_bf16.float32_rows)
    if bf16 == EMULATED or not attention_bf16.supported():
        return KernelChoice(chosen, joined=joined)
    amx = bf16 == "amx_bf16" and attention_bf16.amx_permitted()
    kernel = chosen[torch.bfloat16] = partial(attention_bf16.attention, amx=amx)
    return KernelChoice(chosen, frozenset({torch.bfloat16}), {**joined, torch.bfloat16: kernel})


def joined(query: Any, key: Any, value: Any, starts: Any, causal: bool, factor: float, dropout_p: float) -> Any:
    """Attention of rows that are end to end in one batch, or None if this process has no kernel for it.

    query: [1, heads, tokens, features]; key and value may have fewer heads. `starts`: where each row begins, and
    the number of all tokens, int64 [rows + 1]. Returns [1, heads, tokens, features].
    """
    import torch

    dtype = computed_in(query, key, value) if are_plain(query, key, value) else None
    kernel = _INSTALLED[0].joined.get(dtype) if _INSTALLED else None
    is_ours = kernel is not None and _is_flash_enabled()
    rule = (draw_rule(dropout_p) if dropout_p else NO_DROPOUT) if is_ours else None
    if kernel is None or rule is None:
        return None
    with torch.autocast("cpu", enabled=False):
        given = (tensor.to(dtype) for tensor in (query, key, value))
        return kernel(*given, None, causal, factor, rule, starts.contiguous())


def replaced(original: Callable[..., Any], choice: KernelChoice) -> Callable[..., Any]:
    """scaled_dot_product_attention with the chosen kernels. `original` computes what they do not."""
    import torch

    def scaled_dot_product_attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        **others: Any,
    ) -> Any:
        given = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
        dtype = computed_in(query, key, value) if are_plain(*given) else None
        is_supported = (
            dtype in choice.kernels
            and not is_left_to_torch()
            and (dropout_p > 0 or _is_faster_without(choice, dtype, query, key, value))
            and _is_flash_enabled()
            and not any(others.values())
            and all(tensor.dim() == 4 and tensor.numel() for tensor in given)
            and _sizes_match(query, key, value, enable_gqa)
            and not (is_causal and attn_mask is not None)
            and _supports_mask(attn_mask, query, key, dtype)
        )
        rule = (draw_rule(dropout_p) if dropout_p else NO_DROPOUT) if is_supported else None
        if rule is None:
            if scale is not None:  # since torch 2.1
                others["scale"] = scale
            if enable_gqa:  # since torch 2.5
                others["enable_gqa"] = True
            return original(query, key, value, attn_mask, dropout_p, is_causal, **others)
        factor = query.shape[-1] ** -0.5 if scale is None else scale
        with torch.autocast("cpu", enabled=False):
            query, key, value = (tensor.to(dtype) for tensor in (query, key, value))
            return choice.kernels[dtype](
                query, key, value, attention_mask.readable(attn_mask, key.shape[2]), is_causal, factor, rule
            )

    return scaled_dot_product_attention


def _is_flash_enabled() -> bool:
    """Whether fused attention may be used: sdpa_kernel sets it on CPUs too."""
    import torch

    return bool(torch.backends.cuda.flash_sdp_enabled())


def _threads() -> int:
    import torch

    return int(torch.get_num_threads())


def _is_faster_without(choice: KernelChoice, dtype: Any, query: Any, key: Any, value: Any) -> bool:
    """Whether our kernel is faster without dropout: with a head for each thread.

    torch's kernel also divides a head among threads.
    """
    if query.dim() != 4 or query.shape[2] < FEWEST_QUERIES:
        return False
    chosen = dtype in choice.plain
    if chosen and choice.measured:
        import torch

        trains = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
        # torch.compile cannot trace the search for the nearest length.
        chosen = not is_compiling() and choice.measured.chooses_ours(query.shape[2], trains)
    return chosen and query.shape[0] * query.shape[1] >= _threads()


def _sizes_match(query: Any, key: Any, value: Any, shared: bool) -> bool:
    """Whether the shapes match. `shared`: keys and values may have fewer heads."""
    heads, fewer = query.shape[1], key.shape[1]
    return bool(
        query.shape[0] == key.shape[0]
        and key.shape[:3] == value.shape[:3]
        and query.shape[3] == key.shape[3] == value.shape[3]
        and (heads == fewer or (shared and heads % fewer == 0))
    )


def _supports_mask(mask: Any, query: Any, key: Any, dtype: Any) -> bool:
    """Whether the kernels support the mask. torch reports errors in other masks."""
    if mask is None:
        return True
    wanted = (*query.shape[:3], key.shape[2])
    broadcasts = all(size in (1, full) for size, full in zip(mask.shape, wanted))
    return broadcasts and not mask.requires_grad and attention_mask.known(mask, dtype)
