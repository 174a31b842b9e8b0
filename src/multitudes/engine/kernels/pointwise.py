"""Pointwise operations of all members on images ``[B, (M C), H, W]``, the shape in which convolutions take them.

Only for compiled calls. There vmap would give these operations five axes, for which the compiler knows no channels last: it
stores the result in another order, and copies it before the next convolution.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from multitudes.engine.kernels.convolution import beside, channels_last, second

_library = torch.library.Library("multitudes", "FRAGMENT")

_FUNCTIONS: dict[str, tuple[Callable[..., Tensor], int]] = {
    "relu": (torch.relu, 1), "silu": (F.silu, 1), "gelu": (F.gelu, 1), "hardswish": (F.hardswish, 1),
    "add": (torch.add, 2), "mul": (torch.mul, 2),
}  # fmt: skip
"""What runs for all members, by name, and how many tensors it takes."""

POINTWISE: dict[Any, str] = {
    F.relu: "relu", torch.relu: "relu", Tensor.relu: "relu", F.silu: "silu", F.gelu: "gelu", F.hardswish: "hardswish",
    torch.add: "add", Tensor.add: "add", Tensor.__add__: "add", operator.add: "add",
    torch.mul: "mul", Tensor.mul: "mul", Tensor.__mul__: "mul", operator.mul: "mul",
}  # fmt: skip
"""Functions that a network may call, and the names of what runs in their place."""


DEFAULTS = {"inplace": False, "approximate": "none"}
"""Arguments that modules pass to these functions though they change nothing."""


def on_images(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """Runs a pointwise operation on images of one shape ``[B, C, H, W]``. Returns None for other arguments."""
    count = _FUNCTIONS[name][1]
    alike = len(args) == count and all(isinstance(t, Tensor) and t.ndim == 4 for t in args)
    if not alike or any(t.shape != args[0].shape for t in args):
        return None
    if any(key not in DEFAULTS or value != DEFAULTS[key] for key, value in kwargs.items()):
        return None
    return getattr(torch.ops.multitudes, name)(*args)


def _define(name: str, function: Callable[..., Tensor], count: int) -> None:
    takes = ", ".join(f"Tensor {letter}" for letter in "ab"[:count])
    _library.define(f"{name}({takes}) -> Tensor")
    torch.library.impl(_library, name, "CompositeImplicitAutograd")(function)

    def of_members(info: Any, dims: tuple[Any, ...], *tensors: Tensor) -> tuple[Tensor, int]:
        own = [second(t, dim, info.batch_size) for t, dim in zip(tensors, dims, strict=True)]
        if not all(channels_last(t) for t in own):
            return function(*own), 1
        return function(*[beside(t) for t in own]).unflatten(1, own[0].shape[1:3]), 1

    torch.library.register_vmap(f"multitudes::{name}", of_members, lib=_library)


for _name, (_function, _count) in _FUNCTIONS.items():
    _define(_name, _function, _count)
