"""What torch does with operators: it traces them, or computes several gradients at once."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Callable


def is_compiling() -> bool:
    """Whether torch.compile or torch.export traces the operators now."""
    import torch

    compiling = getattr(getattr(torch, "compiler", None), "is_compiling", None)  # since 2.3
    return bool(compiling and compiling())


def can_trace() -> bool:
    """Whether torch can trace our operators."""
    import torch

    return hasattr(getattr(torch, "compiler", None), "is_exporting")  # since 2.7


def is_left_to_torch() -> bool:
    """Whether torch records the operators for another process, which may not have ours, or cannot trace ours.

    A torch that does not tell whether it exports may always do.
    """
    import torch

    if is_compiling():
        return not can_trace() or torch.compiler.is_exporting()
    return bool(torch.jit.is_tracing())


def in_transform() -> bool:
    """Whether a transform of torch.func is active."""
    import torch

    active = getattr(torch._C, "_are_functorch_transforms_active", None)
    return bool(active and active())


def has_level() -> bool:
    """Whether a level of forward-mode differentiation is active, in which tensors may have tangents."""
    import torch

    return bool(torch.autograd.forward_ad._current_level >= 0)


def have_tangents(tensors: Sequence[Any]) -> bool:
    import torch

    return has_level() and any(
        torch.autograd.forward_ad.unpack_dual(one).tangent is not None for one in tensors if one is not None
    )


def is_transformed_in_graph(tensor: Any) -> bool:
    """Whether torch.compile traces this tensor inside a transform of torch.func, or with a tangent."""
    import torch
    from torch._dynamo.guards import GuardBuilder
    from torch._dynamo.source import GlobalStateSource

    context = torch._guards.TracingContext.try_get()
    if context is not None:  # compile again where tensors may have tangents
        context.guards_context.dynamo_guards.add(GlobalStateSource().make_guard(GuardBuilder.DUAL_LEVEL))
    # A level that begins inside of the graph is unknown to Python.
    return in_transform() or has_level() or torch._VF._unpack_dual(tensor, level=0)[1] is not None


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


def or_by_formula(formula: Callable[[Any], tuple[Callable[..., Any], tuple[Any, ...]]]) -> Callable[..., Any]:
    """Decorates the backward pass of an autograd function, whose kernel computes gradients without a graph.

    Where gradients need a graph (create_graph) or have tangents, and for several gradients at once, torch computes
    those of a formula. `formula(ctx)` returns a function of torch's operators, and the tensors that it gets: one
    for each of the first inputs, None where there is no gradient.
    """

    def decorate(backward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(backward)
        def computed(ctx: Any, *outer: Any) -> Any:
            import torch

            if torch.is_grad_enabled() or is_batched(*outer) or have_tangents(outer):
                return by_formula(ctx, formula, outer)
            return backward(ctx, *outer)

        return computed

    return decorate


def by_formula(ctx: Any, formula: Callable[[Any], Any], outer: Sequence[Any]) -> tuple[Any, ...]:
    """A gradient for each input, see `or_by_formula`. They have a graph if gradients are enabled.

    A saved tensor without the right graph, such as an intermediate result, can be replaced by its value plus a
    tensor of zeros, see `like`.
    """
    import torch

    has_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        function, tensors = formula(ctx)
        # Views, because a tensor may be given twice.
        inputs = [None if tensor is None else tensor.view_as(tensor) for tensor in tensors]
        results = function(*inputs)
        pairs = zip(results if isinstance(results, tuple) else (results,), outer)
        known = [(result, each) for result, each in pairs if each is not None and result.requires_grad]
        wanted = [
            index for index, tensor in enumerate(inputs) if tensor is not None and ctx.needs_input_grad[index]
        ]
        found: list[Any] = [None] * len(ctx.needs_input_grad)
        if known and wanted:
            gradients = torch.autograd.grad(
                [result for result, _ in known],
                [inputs[index] for index in wanted],
                [each for _, each in known],
                create_graph=has_graph,
                allow_unused=True,
            )
            for index, gradient in zip(wanted, gradients):
                found[index] = gradient
    return tuple(found)


def like(tensor: Any, dtype: Any = None) -> Any:
    """Zeros that stand for an input whose value a formula does not need."""
    import torch

    return torch.zeros(tensor.shape, dtype=dtype or tensor.dtype, device="cpu", requires_grad=True)
