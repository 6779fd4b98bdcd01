"""Products of bfloat16 matrices on a CPU without bf16 instructions: made in float32, rounded to bfloat16 once.

That is what the instructions do: a product of two bfloat16 numbers is exact in float32, sums are float32. oneDNN's
emulation of them gives the same at a sixth of float32's speed; widening the operands costs a pass over them.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any, Callable

from entrypoints import contract
from entrypoints.machine.cpus import EMULATED

if TYPE_CHECKING:
    import torch

# "emulated" leaves the products to torch.
# What linear layers and attention without a fused kernel are made of.
_OPERATORS = ("mm", "addmm", "bmm", "baddbmm")
# The registrations live as long as this.
_libraries: list[Any] = []


def needed(bf16: str) -> bool:
    """Whether a CPU that does bf16 as `bf16` (see Topology) is better off, unless the user decided."""
    return bf16 == EMULATED and os.environ.get(contract.BF16_PRODUCTS, "") != EMULATED


def install() -> None:
    """Takes the products of this process over. Other types, and other operators, stay torch's own."""
    import torch

    if _libraries or not hasattr(torch, "library"):  # torch below 1.11 takes no operators from Python
        return
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that its own are replaced
        for name in _OPERATORS:
            library.impl(name, _widened(getattr(torch.ops.aten, name).out), "CPU")
    _libraries.append(library)
    functional = torch.nn.functional
    if hasattr(functional, "scaled_dot_product_attention"):  # since 2.0
        functional.scaled_dot_product_attention = _attention(functional.scaled_dot_product_attention)


def _widened(out: Callable[..., Any]) -> Callable[..., Any]:
    """An operator by its variant that writes to a given tensor, which torch registers separately."""

    import torch

    def operator(*tensors: torch.Tensor, **scalars: Any) -> torch.Tensor:
        dtype = tensors[0].dtype
        if dtype is not torch.bfloat16:
            return out(*tensors, **scalars, out=torch.empty(0, dtype=dtype))
        result = torch.empty(0, dtype=torch.float32)
        out(*(tensor.float() for tensor in tensors), **scalars, out=result)
        return result.to(dtype)

    return operator


def _attention(original: Callable[..., Any]) -> Callable[..., Any]:
    """Attention whose fused kernel has products of its own."""

    import torch

    def scaled_dot_product_attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        narrow = torch.bfloat16
        if query.device.type != "cpu" or computed_in(query, key, value) is not narrow:
            return original(query, key, value, *args, **kwargs)
        args, kwargs = _wide_masks(args, kwargs)
        with torch.autocast("cpu", enabled=False):
            rounded = [tensor.to(narrow).float() for tensor in (query, key, value)]
            return original(*rounded, *args, **kwargs).to(narrow)

    return scaled_dot_product_attention


def _wide_masks(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Widen masks like the operands. torch refuses masks of other dtypes."""
    import torch

    def wide(value: Any) -> Any:
        return value.float() if isinstance(value, torch.Tensor) and computed_in(value) is torch.bfloat16 else value

    return tuple(map(wide, args)), {name: wide(value) for name, value in kwargs.items()}


def autocast_dtype() -> Any:
    """What autocast on the CPU casts to, None where it is off."""
    import torch

    enabled = getattr(torch, "is_autocast_cpu_enabled", None)
    if hasattr(torch, "getautocast_dtype"):  # since 2.4
        return torch.getautocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    return torch.get_autocast_cpu_dtype() if enabled and enabled() else None


def computed_in(*tensors: Any) -> Any:
    """The dtype in which torch computes a product of `tensors`: autocast's or their own. None if they differ."""
    import torch

    autocast = autocast_dtype()

    def cast(tensor: Any) -> Any:
        castable = tensor.is_floating_point() and tensor.dtype is not torch.float64
        return autocast if autocast and castable else tensor.dtype

    dtypes = {cast(tensor) for tensor in tensors}
    return dtypes.pop() if len(dtypes) == 1 else None
