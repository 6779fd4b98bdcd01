"""The operators among torch's transforms: other classes of gradients, compiled autograd, tangents, torch.func.

A line for each check that held. Graphs run operator by operator: the image has no compiler.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from rounding import BF16, FP32, values
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import forward_ad
from torch.nn import functional

from cpu_train_stack.operators import attention, decoder, encoder, encoder_operators


class Own(torch.Tensor):
    """A class of tensors with memory."""


def attended(states: Any, p: float = 0.25) -> Any:
    return functional.scaled_dot_product_attention(states, states, states, dropout_p=p)


def attended_without_dropout(states: Any) -> Any:
    return attended(states, 0.0)


def dropped(states: Any) -> Any:
    return functional.dropout(states, 0.5)


def cases(*functions: Any) -> Any:
    for function, dtype in itertools.product(functions, (FP32, BF16)):
        torch._dynamo.reset()
        torch.manual_seed(1)
        yield function, values(2, 2, 16, 8, dtype=dtype)


def compiled(function: Any) -> Any:
    return torch.compile(function, backend="aot_eager", fullgraph=True)


def gradients_may_have_a_class_of_their_own() -> None:
    norm, angles = torch.nn.LayerNorm(8), (torch.randn(1, 16, 8),) * 2
    others = (
        lambda states: decoder.norm(states, None, norm.weight, 1e-6, BF16)[1],
        lambda states: decoder.gated(states, states),
        lambda states: decoder.rotated(states, *angles, BF16),
        lambda states: encoder.normed_sum(states, states.float(), None, norm, FP32),
        lambda states: encoder.gelu(states.bfloat16()),
    )
    for function, states in cases(attended, attended_without_dropout, dropped, *others):
        found = function(states)
        outer = torch.randn_like(found)
        (expected,) = torch.autograd.grad(found, states, outer, retain_graph=True)
        torch.full((1000,), torch.nan)  # memory that nothing has written is not the last result's
        (gradient,) = torch.autograd.grad(found, states, outer.as_subclass(Own))
        assert torch.equal(gradient.as_subclass(torch.Tensor), expected), function


def compiled_autograd_has_the_same_gradients() -> None:
    """Each step has another seed, and no graph of its own."""
    for function, states in cases(attended, attended_without_dropout, dropped):
        counter, counts = CompileCounterWithBackend("aot_eager"), []
        for _ in range(4):
            loss = function(states).float().square().sum()
            (expected,) = torch.autograd.grad(loss, states, retain_graph=True)
            states.grad = None
            with torch._dynamo.compiled_autograd._enable(torch.compile(backend=counter)):
                loss.backward()
            assert torch.equal(states.grad, expected), function
            counts.append(counter.frame_count)
        assert counts[0] == counts[-1], (function, counts)


def gradients_may_have_tangents() -> None:
    for function, states in cases(attended, dropped):
        found = function(states)
        tangent = torch.randn_like(found)
        (expected,) = torch.autograd.grad(found, states, tangent, retain_graph=True)
        with forward_ad.dual_level():
            outer = forward_ad.make_dual(torch.ones_like(found), tangent)
            (gradient,) = torch.autograd.grad(found, states, outer)
            ours = forward_ad.unpack_dual(gradient).tangent
        torch.testing.assert_close(ours, expected, rtol=2e-2, atol=2e-2)


def graphs_keep_tangents() -> None:
    """Whether a level began before the function, or inside of it, and also if it was compiled without tangents."""

    for function, given in cases(attended, dropped):

        def inside(states: Any, function: Any = function) -> Any:
            with forward_ad.dual_level():
                return forward_ad.unpack_dual(function(forward_ad.make_dual(states, states))).tangent

        states = given.detach()
        graph = compiled(function)
        assert torch.is_tensor(graph(states))
        for _ in range(2):
            with forward_ad.dual_level():
                dual = forward_ad.unpack_dual(graph(forward_ad.make_dual(states, states)))
            if function is dropped:
                assert torch.equal(dual.tangent, dual.primal)
            assert dual.tangent.any(), function
            assert torch.is_tensor(graph(states))
        assert compiled(inside)(states).any(), function


def graphs_hold_transforms() -> None:
    for function, given in cases(attended, attended_without_dropout, dropped):
        states = given.detach()

        def total(states: Any, function: Any = function) -> Any:
            return function(states).float().square().sum()

        def derivative(states: Any, function: Any = function) -> Any:
            return torch.func.jvp(function, (states,), (states,))[1]

        gradient = torch.func.grad(total)
        found = compiled(gradient)(states)
        if function is attended_without_dropout:  # torch's kernel has no forward derivative
            assert torch.equal(found, gradient(states))
            continue
        assert found.any(), function
        assert compiled(derivative)(states).any(), function


def a_tangent_in_an_operator_of_a_graph_is_refused() -> None:
    """Such as in the backward pass of a graph. It would be lost."""
    states = torch.randn(2, 8)
    graph = compiled(dropped)
    found = graph(states.requires_grad_())
    with forward_ad.dual_level():
        outer = forward_ad.make_dual(torch.ones(2, 8), torch.ones(2, 8))
        calls: tuple[Callable[..., Any], ...] = (
            lambda: torch.autograd.grad(found, states, outer),
            lambda: encoder_operators.GELU.traced(outer),
        )
        for call in calls:
            try:
                call()
            except NotImplementedError:
                continue
            raise AssertionError("a tangent was lost")


assert attention._INSTALLED
for check in (
    gradients_may_have_a_class_of_their_own,
    compiled_autograd_has_the_same_gradients,
    gradients_may_have_tangents,
    graphs_keep_tangents,
    graphs_hold_transforms,
    a_tangent_in_an_operator_of_a_graph_is_refused,
):
    torch.manual_seed(7)
    check()
    print(check.__name__, flush=True)
