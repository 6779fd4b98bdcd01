"""One description of an operator for both ways in which torch computes it.

Eagerly, an operator is an autograd function, or a plain one: torch's dispatcher would cost more than a kernel.
Where torch traces a function (torch.compile), it is an operator of torch.library, which stays in the graph.
"""

from __future__ import annotations

from typing import Any, Callable

import torch

from cpu_train_stack.operators.transforms import can_trace, is_compiling

_NAMESPACE = "cpu_train_stack"
# The registrations last as long as this object. None if this torch cannot trace operators.
_LIBRARY = torch.library.Library(_NAMESPACE, "FRAGMENT") if can_trace() else None
_is_compiling = torch.compiler.is_compiling if can_trace() else is_compiling
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def has_memory(tensor: Any) -> bool:
    """False for the tensors with which torch finds out shapes and dtypes."""
    return type(tensor) in _PLAIN


class Operator:
    """Call it with the arguments of its schema, in order. The first one is a tensor."""

    def __init__(
        self,
        schema: str,
        compute: Callable[..., Any],
        save: Callable[..., None] | None = None,
        backward: Callable[..., Any] | None = None,
    ) -> None:
        """`schema`: of torch.library, the name first. All results are tensors.

        `compute`: gets the arguments, and computes the results; without memory (`has_memory`), it allocates them
        only. It may return an argument, or None: an operator in a graph then returns an empty tensor. `save(ctx,
        arguments, results)` and `backward(ctx, *gradients)`: as of an autograd function; None: without gradients.
        """
        self._compute = compute
        self._apply = compute if save is None or backward is None else _function(compute, save, backward).apply
        self.traced: Any = None
        if _LIBRARY is None:
            return
        name = f"{_NAMESPACE}::{schema[: schema.index('(')]}"
        _LIBRARY.define(schema)
        _LIBRARY.impl(schema[: schema.index("(")], self._in_graph, "CPU")
        torch.library.register_fake(name, self._in_graph, lib=_LIBRARY)
        if backward is not None:
            torch.library.register_autograd(name, backward, setup_context=save, lib=_LIBRARY)
        self.traced = getattr(getattr(torch.ops, _NAMESPACE), schema[: schema.index("(")]).default

    def __call__(self, first: Any, *others: Any) -> Any:
        if self.traced is not None and (_is_compiling() or not has_memory(first)):
            return self.traced(first, *others)
        return self._apply(first, *others)

    def _in_graph(self, *inputs: Any) -> Any:
        found = self._compute(*inputs)
        if isinstance(found, torch.Tensor):
            return found
        return tuple(
            inputs[0].new_empty(0) if one is None or any(one is each for each in inputs) else one for one in found
        )


def _function(compute: Callable[..., Any], save: Callable[..., None], backward: Callable[..., Any]) -> Any:
    class Computed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            results = compute(*inputs)
            save(ctx, inputs, results)
            return results

    Computed.backward = staticmethod(backward)
    return Computed
