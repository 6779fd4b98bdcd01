"""Products of bfloat16 matrices on CPUs without bf16 instructions: computed in float32, then rounded to bfloat16.

The instructions do the same: the product of two bfloat16 numbers is exact in float32, and sums are float32.
oneDNN's emulation gives the same result at a sixth of float32's speed. Widening the operands costs a pass over
them.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any, Callable

from cpu_train_stack import contract
from cpu_train_stack.machine.cpus import EMULATED
from cpu_train_stack.operators.transforms import replace_attention

if TYPE_CHECKING:
    import torch

# The operators of linear layers, and of attention without a fused kernel.
_OPERATORS = ("mm", "addmm", "bmm", "baddbmm")
# The registrations last as long as this object.
_libraries: list[Any] = []


def needed(bf16: str) -> bool:
    """Whether these products are faster on a CPU with `bf16` (see Topology), and the user has not turned them
    off."""
    return bf16 == EMULATED and os.environ.get(contract.BF16_PRODUCTS, "") != EMULATED


def is_installed() -> bool:
    """Whether this process computes products of bfloat16 matrices in float32."""
    return bool(_libraries)


def install() -> None:
    """Replace the products of bfloat16 matrices in this process. Other dtypes and operators remain torch's."""
    import torch

    if _libraries or not hasattr(torch, "library"):  # torch before 1.11 has no operators in Python
        return
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that its operators are replaced
        for name in _OPERATORS:
            library.impl(name, _widened(getattr(torch.ops.aten, name).out), "CPU")
    _libraries.append(library)
    functional = torch.nn.functional
    if hasattr(functional, "scaled_dot_product_attention"):  # since 2.0
        replace_attention(_attention(functional.scaled_dot_product_attention))


def _widened(out: Callable[..., Any]) -> Callable[..., Any]:
    """An operator that computes bfloat16 matrices [.., rows, columns] in float32, by torch's `out` variant.

    Returns the dtype of the operands.
    """

    import torch

    def operator(*tensors: torch.Tensor, **scalars: Any) -> torch.Tensor:
        dtype = tensors[0].dtype
        if any(tensor.dtype is not torch.bfloat16 for tensor in tensors):  # torch refuses different dtypes
            return out(*tensors, **scalars, out=torch.empty(0, dtype=dtype, device="cpu"))
        result = torch.empty(0, dtype=torch.float32, device="cpu")
        out(*(tensor.float() for tensor in tensors), **scalars, out=result)
        return result.to(dtype)

    return operator


def _attention(original: Callable[..., Any]) -> Callable[..., Any]:
    """Attention in float32 for bfloat16 tensors: the fused kernel does not call the operators replaced above.

    Tensors: [batch, .., rows, features], bfloat16 or to be cast to it by autocast. Returns bfloat16.
    """

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
    """Widen bfloat16 masks to float32, the dtype of the operands: torch refuses masks of other dtypes."""
    import torch

    def wide(value: Any) -> Any:
        return value.float() if isinstance(value, torch.Tensor) and computed_in(value) is torch.bfloat16 else value

    return tuple(map(wide, args)), {name: wide(value) for name, value in kwargs.items()}


def autocast_dtype() -> Any:
    """The dtype of autocast on the CPU, None if autocast is off."""
    import torch

    enabled = getattr(torch, "is_autocast_cpu_enabled", None)
    if hasattr(torch, "get_autocast_dtype"):  # since 2.4
        return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    return torch.get_autocast_cpu_dtype() if enabled and enabled() else None


def computed_in(*tensors: Any) -> Any:
    """The dtype in which torch computes a product of `tensors`: autocast's or their own. None if dtypes differ."""
    import torch

    autocast = autocast_dtype()

    def cast(tensor: Any) -> Any:
        castable = tensor.is_floating_point() and tensor.dtype is not torch.float64
        return autocast if autocast and castable else tensor.dtype

    dtypes = {cast(tensor) for tensor in tensors}
    return dtypes.pop() if len(dtypes) == 1 else None
