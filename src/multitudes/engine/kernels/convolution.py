"""Convolutions of all members at once, by one of several ways.

Inside vmap, a convolution whose kernel belongs to members can be computed as

- ``grouped``: one convolution with M times the groups, channels of members beside each other,
- ``product``: one batched matrix product, if the kernel has one pixel, without padding, and channels come last,
- ``block``: one plain convolution with a block-diagonal kernel: M times the arithmetic, no groups,
- ``each``: one convolution per member.

Which is fastest depends on shapes, precision, device and library: `ways.py` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from multitudes.engine.kernels.products import can_be_an_operator, in_pixels, product_of_pixels
from multitudes.engine.kernels.ways import HALF, way_of

FEW_GROUPS = 4
"""Groups of one member up to which a GPU runs a convolution in half precision without them: bytes count, not arithmetic."""

_library = torch.library.Library("multitudes", "FRAGMENT")
_library.define(
    "convolution(Tensor x, Tensor kernel, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups)"
    " -> Tensor"
)


@torch.library.impl(_library, "convolution", "CompositeImplicitAutograd")
def convolution(
    x: Tensor,
    kernel: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """Computes a plain convolution; under vmap `convolution_of_members` takes its place."""
    return torch.convolution(x, kernel, bias, stride, padding, dilation, False, [0] * len(stride), groups)


def convolution_of_members(
    members: int,
    dims: Sequence[Any],
    x: Tensor,
    kernel: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> tuple[Tensor, int]:
    """Computes the convolution of all members; `dims` are the member axes of x, kernel and bias. Returns also its own."""
    how = (stride, padding, dilation, groups)
    if dims[1] is None:
        return _one_kernel(first(x, dims[0], members), kernel, bias, dims[2], how), 0
    bias = None if bias is None else first(bias, dims[2], members)
    kernel = first(kernel, dims[1], members)
    if dims[0] is None and groups == 1:
        y = convolution(x, kernel.flatten(0, 1), None if bias is None else bias.flatten(), *how)
        return by_member(y, members), 1
    if x.is_cuda and x.dtype in HALF and 1 < groups <= FEW_GROUPS and kernel.shape[2] > 1:
        kernel, groups = without_groups(kernel, groups), 1
        how = (stride, padding, dilation, groups)
    given = second(x, dims[0], members)
    return WAYS[way_of(given, kernel, *how)](given, kernel, bias, *how)


def without_groups(kernel: Tensor, groups: int) -> Tensor:
    """Returns kernels ``[M, K, C, ...]`` without groups for kernels ``[M, K, C / groups, ...]``: zeros between groups."""
    own = kernel.unflatten(1, (groups, -1)).unsqueeze(3)  # [M, G, K / G, 1, C / G, ...]
    on = torch.eye(groups, dtype=kernel.dtype, device=kernel.device).view(groups, 1, groups, 1, *(1 for _ in kernel.shape[3:]))
    return (own * on).flatten(3, 4).flatten(1, 2)


def run_under_vmap(name: str, of_members: Callable[..., tuple[Tensor, int]], library: torch.library.Library) -> None:
    """Makes vmap run an operator of ours for all members by a function of their number, the member axes, and the arguments."""
    torch.library.register_vmap(
        f"multitudes::{name}", lambda info, dims, *args: of_members(info.batch_size, dims, *args), lib=library
    )


run_under_vmap("convolution", convolution_of_members, _library)


def _one_kernel(x: Tensor, kernel: Tensor, bias: Tensor | None, dim: int | None, how: tuple[Any, ...]) -> Tensor:
    """Runs the rows of all members through one kernel. A bias of members is added afterwards."""
    common, own = (bias, None) if bias is None or dim is None else (None, bias.movedim(dim, 0))
    y = convolution(in_rows(x), kernel, common, *how).unflatten(0, x.shape[:2])
    return y if own is None else y + _spread(own, y)


def grouped(x: Tensor, kernel: Tensor, bias: Tensor | None, *how: Any) -> tuple[Tensor, int]:
    """Runs one convolution with M times the groups. Returns ``[B, M, K, ...]``."""
    stride, padding, dilation, groups = how
    flat = None if bias is None else bias.flatten()
    y = convolution(beside(x), kernel.flatten(0, 1), flat, stride, padding, dilation, groups * x.shape[1])
    return by_member(y, len(kernel)), 1


def each(x: Tensor, kernel: Tensor, bias: Tensor | None, *how: Any) -> tuple[Tensor, int]:
    """Runs one convolution per member. Returns ``[M, B, K, ...]``."""
    biases = [None] * len(kernel) if bias is None else bias.unbind(0)
    parts = zip(apart(x).unbind(0), kernel.unbind(0), biases, strict=True)
    return torch.stack([convolution(rows, weight, own, *how) for rows, weight, own in parts]), 0


def block(x: Tensor, kernel: Tensor, bias: Tensor | None, *how: Any) -> tuple[Tensor, int]:
    """Runs one plain convolution with a block-diagonal kernel. Returns ``[B, M, K, ...]``."""
    members = len(kernel)
    wide = without_groups(kernel.flatten(0, 1).unsqueeze(0), members).squeeze(0)
    if channels_last(x):
        wide = wide.contiguous(memory_format=torch.channels_last if wide.ndim == 4 else torch.contiguous_format)
    y = convolution(beside(x), wide, None if bias is None else bias.flatten(), *how)
    return by_member(y, members), 1


def product(x: Tensor, kernel: Tensor, bias: Tensor | None, *how: Any) -> tuple[Tensor, int]:
    """Runs one batched matrix product over pixels, whose channels lie together. Returns the result and its member axis."""
    steps, weights = how[0], kernel.flatten(2)
    if x.is_cuda and can_be_an_operator(x, kernel):
        return product_beside(x, weights, bias, steps), 1
    x = x[(slice(None),) * 3 + tuple(slice(None, None, step) for step in steps)]
    front = x.movedim(1, 0).movedim(2, -1)  # [M, B, ..., C]
    rows = front.flatten(1, -2)
    y = torch.bmm(rows, weights.mT) if bias is None else torch.baddbmm(bias.unsqueeze(1), rows, weights.mT)
    return y.unflatten(1, front.shape[1:-1]).movedim(-1, 2), 0


def product_beside(x: Tensor, weights: Tensor, bias: Tensor | None, steps: list[int]) -> Tensor:
    """Runs the same product where channels of members stay beside each other. Returns ``[B, M, K, ...]``."""
    flat = beside(x)
    if any(step > 1 for step in steps):
        flat = flat[(slice(None),) * 2 + tuple(slice(None, None, step) for step in steps)]
    y = product_of_pixels(in_pixels(flat), weights.squeeze(-1))
    y = y if bias is None else y + bias.reshape(1, -1, *(1 for _ in steps))
    return by_member(y, len(weights))


WAYS = {"grouped": grouped, "each": each, "block": block, "product": product}
"""How convolutions of members can run. Each takes x ``[B, M, C, ...]``, in any memory layout."""


def channels_last(x: Tensor) -> bool:
    """Checks whether in ``[B, M, C, ...]`` or ``[M, B, C, ...]`` the channels of one pixel lie together."""
    return x.ndim > 3 and x.stride(2) == 1 and x.shape[2] > 1 and x.stride(-1) >= x.shape[2]


def first(x: Tensor, dim: int | None, members: int) -> Tensor:
    """Moves the member axis to the front; a tensor without one is expanded."""
    if dim == 0:
        return x
    return x.unsqueeze(0).expand(members, *x.shape) if dim is None else x.movedim(dim, 0)


def second(x: Tensor, dim: int | None, members: int) -> Tensor:
    """Moves the member axis behind the first axis; a tensor without one is expanded."""
    if dim == 1:
        return x
    return x.unsqueeze(1).expand(-1, members, *x.shape[1:]) if dim is None else x.movedim(dim, 1)


def by_member(x: Tensor, members: int) -> Tensor:
    """Turns ``[B, (M C), ...]`` into ``[B, M, C, ...]``. `beside` turns that back at no cost, forward or backward.

    So a compiler, too, sees the tensor itself and not a view of a view, which it would keep for backward beside the tensor.
    """
    rows, channels, *image = x.shape
    view = x.view(rows, members, channels // members, *image)
    view.multitudes_beside = x  # type: ignore[attr-defined]
    return view


def known_beside(x: Tensor) -> Tensor | None:
    """Returns the tensor ``[B, (M C), ...]`` of which x ``[B, M, C, ...]`` is a view by `by_member`; None if it is not."""
    return getattr(x, "multitudes_beside", None)


def beside(x: Tensor) -> Tensor:
    """Turns ``[B, M, C, ...]`` into ``[B, (M C), ...]``, channels last if they were."""
    if (known := known_beside(x)) is not None:
        return known
    if not channels_last(x) or x.stride(1) == x.shape[2]:
        return x.flatten(1, 2)
    pixels = x.movedim((1, 2), (-2, -1))
    return pixels.flatten(-2).movedim(-1, 1)


def apart(x: Tensor) -> Tensor:
    """Turns ``[B, M, C, ...]`` into ``[M, B, C, ...]`` whose slices are dense, channels last if they were."""
    if not channels_last(x):
        return x.movedim(1, 0)
    return x.movedim(1, 0).movedim(2, -1).contiguous().movedim(-1, 2)


def in_rows(x: Tensor) -> Tensor:
    """Turns ``[M, B, C, ...]`` into ``[(M B), C, ...]``, channels last if they were."""
    if not channels_last(x):
        return x.flatten(0, 1)
    return x.movedim(2, -1).flatten(0, 1).movedim(-1, 1)


def _spread(bias: Tensor, y: Tensor) -> Tensor:
    """Gives a bias ``[M, K]`` the axes of y ``[M, B, K, ...]``."""
    return bias.to(y.dtype).reshape(bias.shape[0], 1, bias.shape[1], *(1 for _ in y.shape[3:]))
