"""Pointwise operations of all members on images ``[B, (M C), H, W]``, the shape in which convolutions take them.

Under vmap these operations would have five axes. A compiler knows no channels last for five: it stores the result in another
order, and copies it before the next convolution. Without a compiler every change between four axes and five takes as long as
a small layer, forward and backward.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import _functorch as functorch

from multitudes.engine.kernels.convolution import beside, by_member, channels_last, known_beside, second

_library = torch.library.Library("multitudes", "FRAGMENT")

_FUNCTIONS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor] | None, int]] = {
    "relu": (torch.relu, torch.relu_, 1), "silu": (F.silu, partial(F.silu, inplace=True), 1),
    "hardswish": (F.hardswish, partial(F.hardswish, inplace=True), 1), "gelu": (F.gelu, None, 1),
    "add": (torch.add, Tensor.add_, 2), "mul": (torch.mul, Tensor.mul_, 2),
}  # fmt: skip
"""What runs for all members, by name: the function, the one that changes its first tensor, and how many tensors they take."""

POINTWISE: dict[Any, str] = {
    F.relu: "relu", torch.relu: "relu", Tensor.relu: "relu", F.silu: "silu", F.gelu: "gelu", F.hardswish: "hardswish",
    torch.add: "add", Tensor.add: "add", Tensor.__add__: "add", operator.add: "add",
    torch.mul: "mul", Tensor.mul: "mul", Tensor.__mul__: "mul", operator.mul: "mul",
}  # fmt: skip
"""Functions that a network may call, and the names of what runs in their place."""

IN_PLACE: dict[Any, str] = {
    F.relu_: "relu", torch.relu_: "relu", Tensor.relu_: "relu",
    Tensor.add_: "add", Tensor.__iadd__: "add", operator.iadd: "add",
    Tensor.mul_: "mul", Tensor.__imul__: "mul", operator.imul: "mul",
}  # fmt: skip
"""The same for functions that change their first tensor."""

READS_NO_INPUT = ("relu", "add")
"""Operations whose gradients do not need their inputs, which may change afterwards."""

NAMES = {**POINTWISE, **IN_PLACE}
DEFAULTS = {"approximate": "none"}
"""Arguments that modules pass to these functions though they change nothing."""


def on_images(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """Runs a pointwise operation on images of one shape ``[B, C, H, W]``. Returns None for other arguments."""
    name, in_place = NAMES[func], func in IN_PLACE
    plain, changing, count = _FUNCTIONS[name]
    if len(args) != count:
        return None
    for key, value in kwargs.items():
        if key == "inplace":
            in_place = bool(value)
        elif key not in DEFAULTS or value != DEFAULTS[key]:
            return None
    first = args[0]
    if not isinstance(first, Tensor) or first.ndim != 4:
        return None
    if count == 2:
        second = args[1]
        if not isinstance(second, Tensor) or second.shape != first.shape or second.dtype != first.dtype:
            return None
    if torch.compiler.is_compiling():
        if in_place and name not in READS_NO_INPUT:
            return None
        result: Tensor = getattr(torch.ops.multitudes, name)(*args)
        if in_place:
            args[0].copy_(result)  # for those who read it later; the compiler drops it if there are none
        return result
    return _now(changing if in_place else plain, args, in_place)


def _now(function: Any, args: tuple[Tensor, ...], in_place: bool) -> Tensor | None:
    """Runs a function at once on the images of which all arguments are views. Returns None if they are not."""
    level, flat = functorch.maybe_current_level(), []
    if level is None:
        return None
    for tensor in args:
        if not functorch.is_batchedtensor(tensor) or functorch.maybe_get_level(tensor) != level:
            return None
        own = functorch.get_unwrapped(tensor)
        image = known_beside(own)
        if image is None or functorch.maybe_get_bdim(tensor) != 1:
            return None
        flat.append(image)
    y = function(*flat)
    return args[0] if in_place else functorch._add_batch_dim(by_member(y, own.shape[1]), 1, level)


def _define(name: str, function: Callable[..., Tensor], count: int) -> None:
    takes = ", ".join(f"Tensor {letter}" for letter in "ab"[:count])
    _library.define(f"{name}({takes}) -> Tensor")
    torch.library.impl(_library, name, "CompositeImplicitAutograd")(function)

    def of_members(info: Any, dims: tuple[Any, ...], *tensors: Tensor) -> tuple[Tensor, int]:
        own = [second(t, dim, info.batch_size) for t, dim in zip(tensors, dims, strict=True)]
        if not all(channels_last(t) for t in own):
            return function(*own), 1
        return by_member(function(*[beside(t) for t in own]), info.batch_size), 1

    torch.library.register_vmap(f"multitudes::{name}", of_members, lib=_library)


for _name, (_function, _, _count) in _FUNCTIONS.items():
    _define(_name, _function, _count)
