"""Functions that run on the plain tensors of all members as they are, because members stay where they lie.

Each takes the members, the function and its arguments, and returns None for arguments that it does not know.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from multitudes.engine.kernels.places import BESIDE, Members
from multitudes.engine.kernels.pointwise import NAMES

Direct = Callable[[Members, Any, tuple[Any, ...], dict[str, Any]], Any]


def elementwise(members: Members, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Runs a function of single entries on tensors of one shape in which members lie alike, and on numbers."""
    first, *others = args
    place = members.place(first) if isinstance(first, Tensor) else None
    if place is None:
        return None
    for other in (*others, *kwargs.values()):
        if isinstance(other, Tensor) and (
            members.place(other) != place or other.shape != first.shape or other.dtype != first.dtype
        ):
            return None
    y: Tensor = func(*args, **kwargs)
    return y if y is first else members.put(y, place)


def flattened(members: Members, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Flattens all axes but the rows: channels that lie beside each other become features that do."""
    if kwargs or args[1:] not in ((1,), (1, -1)) or members.place(args[0]) != BESIDE:
        return None
    return members.put(torch.flatten(args[0], 1), BESIDE)


def viewed(members: Members, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Does the same, written as ``x.view(len(x), -1)``."""
    sizes = args[1:] if len(args) != 2 else tuple(args[1]) if isinstance(args[1], list | tuple) else ()
    if kwargs or members.place(args[0]) != BESIDE or sizes != (args[0].shape[0], -1):
        return None
    return members.put(func(args[0], sizes), BESIDE)


def averaged(members: Members, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Takes means over pixels."""
    x, *axes = args
    axes = axes or [kwargs.get("dim")]
    if members.place(x) != BESIDE or len(axes) != 1 or not kwargs.keys() <= {"dim", "keepdim"}:
        return None
    along = list(axes[0]) if isinstance(axes[0], list | tuple) else [axes[0]]
    if x.ndim < 3 or not all(isinstance(axis, int) and axis % x.ndim >= 2 for axis in along):
        return None
    return members.put(torch.mean(x, along, keepdim=kwargs.get("keepdim", False)), BESIDE)


def pooled(members: Members, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Pools an image to a fixed number of pixels."""
    if len(args) != 2 or kwargs or members.place(args[0]) != BESIDE or args[0].ndim != 4:
        return None
    return members.put(func(*args), BESIDE)


def shape(members: Members, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Reads the shape of one member's tensor."""
    sizes = members.shape(args[0])
    if func is Tensor.size and (len(args) > 1 or kwargs):
        return sizes[args[1] if len(args) > 1 else kwargs["dim"]]
    return sizes


def ndim(members: Members, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Reads the number of axes of one member's tensor."""
    return len(members.shape(args[0]))


def kind(members: Members, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Reads what is the same for all members and for one."""
    return func(*args, **kwargs)


def _reads(*names: str) -> list[Any]:
    """Returns the functions by which modes see that attributes of a tensor are read."""
    return [getattr(Tensor, name).__get__ for name in names]


_ELEMENTWISE = [
    *NAMES, torch.sigmoid, Tensor.sigmoid, F.sigmoid, torch.tanh, Tensor.tanh, F.tanh, F.leaky_relu, F.elu, F.selu, F.celu,
    F.relu6, F.hardtanh, F.hardsigmoid, F.mish, F.softsign, torch.abs, Tensor.abs, torch.neg, Tensor.neg, Tensor.__neg__,
    torch.sub, Tensor.sub, Tensor.__sub__, operator.sub, torch.div, Tensor.div, Tensor.__truediv__, operator.truediv,
    torch.clamp, Tensor.clamp,
]  # fmt: skip

_KINDS = [
    *_reads("dtype", "device", "is_cuda", "requires_grad", "layout"),
    Tensor.is_floating_point, torch.is_floating_point, Tensor.is_complex, torch.is_complex,
]  # fmt: skip

DIRECT: dict[Any, Direct] = {
    **dict.fromkeys(_ELEMENTWISE, elementwise),
    **dict.fromkeys([torch.flatten, Tensor.flatten], flattened),
    **dict.fromkeys([Tensor.view, Tensor.reshape], viewed),
    **dict.fromkeys([torch.mean, Tensor.mean], averaged),
    F.adaptive_avg_pool2d: pooled,
    **dict.fromkeys([*_reads("shape"), Tensor.size], shape),
    **dict.fromkeys([*_reads("ndim"), Tensor.dim, Tensor.ndimension], ndim),
    **dict.fromkeys(_KINDS, kind),
}
"""Functions by what runs them."""
