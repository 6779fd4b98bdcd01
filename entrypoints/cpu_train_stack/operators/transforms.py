"""What torch does with operators: it traces them, or computes several gradients at once."""

from __future__ import annotations

import functools
from typing import Any, Callable


def is_traced() -> bool:
    """Whether torch.compile or torch.jit reads the operators now, to compute them later or elsewhere."""
    import torch

    compiler = getattr(torch, "compiler", None)  # since 2.1
    is_compiling = getattr(compiler, "is_compiling", None)  # since 2.3
    return bool((is_compiling and is_compiling()) or torch.jit.is_tracing())


def unless_traced(changed: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Calls `original` while torch traces the function, otherwise `changed`: torch cannot trace our kernels."""

    @functools.wraps(changed)
    def function(*args: Any, **options: Any) -> Any:
        return original(*args, **options) if is_traced() else changed(*args, **options)

    return function


def replace_attention(function: Callable[..., Any]) -> None:
    """Replace torch.nn.functional's attention. torch.jit.script still compiles calls of it as torch's operator."""
    import torch
    from torch.jit import _builtins

    torch.nn.functional.scaled_dot_product_attention = function
    _builtins._register_builtin(function, "aten::scaled_dot_product_attention")


def is_batched(*tensors: Any) -> bool:
    """Whether a tensor stands for several: is_grads_batched of torch.autograd.grad, or torch.func.vmap."""
    import torch

    functorch = getattr(torch._C, "_functorch", None)  # since 2.0
    names = ("is_batchedtensor", "is_legacy_batchedtensor")  # of vmap, of is_grads_batched
    checks = [getattr(functorch, name, None) for name in names]
    return any(check(each) for each in tensors if each is not None for check in checks if check is not None)


def refuse_batched(setting: str, *gradients: Any) -> None:
    """Raise RuntimeError in a backward pass for several gradients at once. `setting`: turns the kernel off."""
    if is_batched(*gradients):
        raise RuntimeError(
            "this project's kernels compute one gradient at a time, not those of is_grads_batched or vmap: set "
            f"{setting} to compute them with torch"
        )
