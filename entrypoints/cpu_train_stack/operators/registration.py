"""One description of an operator for both ways in which torch computes it.

Eagerly, an operator is an autograd function, or a plain one: torch's dispatcher would cost more than a kernel.
Where torch traces a function (torch.compile), it is an operator of torch.library, which stays in the graph.
"""

from __future__ import annotations

from typing import Any, Callable

import torch

from cpu_train_stack.operators.transforms import (
    can_trace,
    have_tangents,
    is_compiling,
    is_left_to_torch,
    is_transformed_in_graph,
)

_NAMESPACE = "cpu_train_stack"
# The registrations last as long as this object. None if this torch cannot trace operators.
_LIBRARY = torch.library.Library(_NAMESPACE, "FRAGMENT") if can_trace() else None
_is_compiling = torch.compiler.is_compiling if can_trace() else is_compiling
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def has_memory(tensor: Any) -> bool:
    """False for the tensors with which torch finds out shapes and dtypes."""
    return type(tensor) in _PLAIN


def is_in_graph(tensor: Any) -> bool:
    """Whether torch.compile makes a graph for this process, in which `tensor` stands for one of this machine."""
    is_fake = type(tensor).__module__.startswith("torch._subclasses.") and tensor.device.type == "cpu"
    return is_fake and is_compiling() and not is_left_to_torch() and not is_transformed_in_graph(tensor)


class Operator:
    """Call it with the arguments of its schema, in order. The first one is a tensor."""

    def __init__(
        self,
        schema: str,
        compute: Callable[..., Any],
        save: Callable[..., None] | None = None,
        backward: Callable[..., Any] | None = None,
        returns_first: bool = False,
    ) -> None:
        """`schema`: of torch.library, the name first. All results are tensors.

        `compute`: gets the arguments, and computes the results; without memory (`has_memory`), it allocates them
        only. It may return an argument, or None: an operator in a graph then returns an empty tensor. `save(ctx,
        arguments, results)` and `backward(ctx, *gradients)`: as of an autograd function; None: without gradients.
        `returns_first`: a call returns the first result only. `save` keeps the others, which have no gradients.
        """
        name, _, _ = schema.partition("(")
        self._compute = self._apply = compute
        if save is not None and backward is not None:
            self._apply = _function(name, compute, save, backward, returns_first).apply
        self._returns_first = returns_first
        self.traced: Any = None
        if _LIBRARY is None:
            return
        # Kernels depend on the layout of tensors. Inductor keeps it by default since torch has the newer tag.
        is_new = hasattr(torch.Tag, "needs_exact_strides")
        _LIBRARY.define(schema, tags=() if is_new else torch.Tag.needs_fixed_stride_order)
        _LIBRARY.impl(name, self._in_memory, "CPU")
        whole = f"{_NAMESPACE}::{name}"
        torch.library.register_fake(whole, self._in_graph, lib=_LIBRARY)
        if backward is not None:
            keep = _first_only(save) if returns_first else save
            torch.library.register_autograd(whole, backward, setup_context=keep, lib=_LIBRARY)
        self.traced = getattr(getattr(torch.ops, _NAMESPACE), name).default

    def __call__(self, *inputs: Any) -> Any:
        if self.traced is not None and (_is_compiling() or type(inputs[0]) not in _PLAIN):
            found = self.traced(*inputs)
            return found[0] if self._returns_first else found
        return self._apply(*inputs)

    def _in_memory(self, *inputs: Any) -> Any:
        """`inputs` have memory, whatever the classes of tensors are."""
        tensors = [one for one in inputs if isinstance(one, torch.Tensor)]
        if have_tangents(tensors):
            raise NotImplementedError(
                f"{self.traced} in a compiled graph has no forward-mode derivative: call the function uncompiled, "
                "or compile it under torch.autograd.forward_ad.dual_level() first"
            )
        if all(type(one) in _PLAIN for one in tensors):
            return self._in_graph(*inputs)
        return self._in_graph(
            *(one.as_subclass(torch.Tensor) if isinstance(one, torch.Tensor) else one for one in inputs)
        )

    def _in_graph(self, *inputs: Any) -> Any:
        found = self._compute(*inputs)
        if isinstance(found, torch.Tensor):
            return found
        return tuple(
            inputs[0].new_empty(0) if one is None or any(one is each for each in inputs) else one for one in found
        )


def _first_only(save: Any) -> Callable[..., None]:
    def save_context(ctx: Any, inputs: Any, output: Any) -> None:
        save(ctx, inputs, output)
        ctx.mark_non_differentiable(*output[1:])

    return save_context


def _function(
    name: str, compute: Callable[..., Any], save: Callable[..., None], backward: Callable[..., Any], first: bool
) -> Any:
    def forward(ctx: Any, *inputs: Any) -> Any:
        results = compute(*inputs)
        save(ctx, inputs, results)
        return results[0] if first else results

    # Profiles show the name of the class.
    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(name.title().replace("_", ""), (torch.autograd.Function,), methods)
