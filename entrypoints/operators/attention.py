"""Attention by the image's own kernels, where they are ahead of torch's.

torch's fused kernel for CPUs knows no dropout: with it scaled_dot_product_attention becomes a chain of operators
over all scores, in float32 also for bfloat16 tensors. float32 is what attention_wide computes, and bfloat16 too on
a CPU without instructions for it. With them attention_narrow does, as torch's fused kernel would without dropout;
on CPUs without AMX, which torch's kernel has and this one has not, it takes training without dropout over as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

from entrypoints.machine.cpus import EMULATED
from entrypoints.operators import attention_bf16, attention_fp32, attention_mask, randomness
from entrypoints.operators.bf16_products import computed_in
from entrypoints.operators.randomness import Rule

# "torch" turns off this kernel.
# Arguments: query, key, value, mask (attention_mask.readable) or None, whether attention is causal, the factor of
# the scores, the dropout rule.
Kernel = Callable[[Any, Any, Any, Any, bool, float, Rule], Any]
NO_DROPOUT = Rule(0, 0)


@dataclass(frozen=True)
class Choice:
    """This process's kernels by dtype, and the dtypes for which they are faster even without dropout."""

    kernels: dict[Any, Kernel]
    without_dropout: tuple[Any, ...]


def install(bf16: str, widened: bool) -> None:
    """Replace torch.nn.functional's attention. `bf16`: as in Topology. `widened`: products are in float32."""
    from torch.nn import functional

    original = getattr(functional, "scaled_dot_product_attention", None)  # since 2.0
    choice = _choice(bf16, widened)
    if original is not None and choice.kernels:
        functional.scaled_dot_product_attention = _attention(original, choice)


def _choice(bf16: str, widened: bool) -> Choice:
    import torch

    chosen: dict[Any, Kernel] = {}
    if attention_fp32.supported():
        chosen[torch.float32] = attention_fp32.attention
        if widened:
            chosen[torch.bfloat16] = attention_fp32.attention
    if bf16 == EMULATED or not attention_bf16.supported():
        return Choice(chosen, ())
    chosen[torch.bfloat16] = attention_bf16.attention
    return Choice(chosen, (torch.bfloat16,) if bf16 == "avx512_bf16" else ())


def _attention(original: Callable[..., Any], choice: Choice) -> Callable[..., Any]:
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
        dtype = computed_in(query, key, value) if randomness.plain(*given) else None
        ours = (
            dtype in choice.kernels
            and (dropout_p > 0 or (dtype in choice.without_dropout and _learns(query, key, value)))
            and torch.backends.cuda.flash_sdp_enabled()  # sdpa_kernel sets it on CPUs too
            and not any(others.values())
            and all(tensor.dim() == 4 and tensor.numel() for tensor in given)
            and _alike(query, key, value, enable_gqa)
            and not (is_causal and attn_mask is not None)
            and _fits(attn_mask, query, key, dtype)
        )
        rule = (randomness.draw(dropout_p) if dropout_p else NO_DROPOUT) if ours else None
        if rule is None:
            others.update({"enable_gqa": True} if enable_gqa else {})  # an older torch does not know it
            return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **others)
        factor = query.shape[-1] ** -0.5 if scale is None else scale
        with torch.autocast("cpu", enabled=False):
            query, key, value = (tensor.to(dtype) for tensor in (query, key, value))
            return choice.kernels[dtype](
                query, key, value, attention_mask.readable(attn_mask, key.shape[2]), is_causal, factor, rule
            )

    return scaled_dot_product_attention


def _learns(query: Any, key: Any, value: Any) -> bool:
    """Whether there will be a backward pass, and a head for each thread: torch divides heads, too."""
    import torch

    wanted = any(tensor.requires_grad for tensor in (query, key, value))
    return torch.is_grad_enabled() and wanted and query.shape[0] * query.shape[1] >= torch.get_num_threads()


def _alike(query: Any, key: Any, value: Any, shared: bool) -> bool:
    """Whether the sizes belong together. `shared`: keys and values may have fewer heads."""
    heads, fewer = query.shape[1], key.shape[1]
    return bool(
        query.shape[0] == key.shape[0]
        and key.shape[:3] == value.shape[:3]
        and query.shape[3] == key.shape[3] == value.shape[3]
        and (heads == fewer or (shared and heads % fewer == 0))
    )


def _fits(mask: Any, query: Any, key: Any, dtype: Any) -> bool:
    """Whether the kernels support the mask. torch reports errors of other masks."""
    if mask is None:
        return True
    wanted = (*query.shape[:3], key.shape[2])
    fits = all(size in (1, full) for size, full in zip(mask.shape, wanted))
    return fits and not mask.requires_grad and attention_mask.known(mask, dtype)
