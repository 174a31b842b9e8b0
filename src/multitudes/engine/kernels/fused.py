"""Convolutions of all members with what follows them in a frozen network: a bias, an addition, a ReLU.

On a GPU in half precision these layers wait for memory, not for arithmetic: each of the three as a pass of its own reads and
writes all images again. There one kernel computes all of it (`fused_kernel.py`). Elsewhere the same operations run one by one.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from multitudes.engine.kernels.convolution import (
    beside,
    by_member,
    convolution_of_members,
    first,
    in_rows,
    run_under_vmap,
    second,
)
from multitudes.engine.kernels.products import can_be_an_operator
from multitudes.engine.kernels.ways import HALF

FEWEST = 16
"""Input channels of a member from which on the kernel runs: tiles of fewer are mostly padding."""

_library = torch.library.Library("multitudes", "FRAGMENT")
_HOW = "SymInt[] stride, SymInt[] padding, SymInt[] dilation"
_library.define(f"fused(Tensor x, Tensor kernel, Tensor? bias, Tensor? other, bool relu, {_HOW}, SymInt groups) -> Tensor")
_library.define(
    f"fused_kernel(Tensor x, Tensor kernel, Tensor? bias, Tensor? other, SymInt members, bool relu, {_HOW}) -> Tensor"
)


@torch.library.impl(_library, "fused", "CompositeImplicitAutograd")
def fused(
    x: Tensor,
    kernel: Tensor,
    bias: Tensor | None,
    other: Tensor | None,
    relu: bool,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """Computes a 2-D convolution, adds `other` of the same shape if given, and applies ReLU if asked.

    Under vmap `fused_of_members` takes its place.
    """
    y = F.conv2d(x, kernel, bias, stride, padding, dilation, groups)
    y = y if other is None else y + other
    return F.relu(y) if relu else y


def fused_of_members(members: int, dims: Sequence[Any], *args: Any) -> tuple[Tensor, int]:
    """Computes the same for all members; `dims` are the member axes of the arguments. Returns also the result's."""
    x, kernel, bias, other, relu, *how = args
    if not _in_one_kernel(dims, (x, kernel, bias, other), how[3]):
        return _one_by_one(members, dims, *args)
    y = torch.ops.multitudes.fused_kernel(
        beside(x.movedim(dims[0], 1)),
        kernel.movedim(dims[1], 0).flatten(0, 1),
        None if bias is None else first(bias, dims[2], members).flatten(),
        None if other is None else beside(other.movedim(dims[3], 1)),
        members, relu, *how[:3],
    )  # fmt: skip
    return by_member(y, members), 1


run_under_vmap("fused", fused_of_members, _library)

FUSED = torch.ops.multitudes.fused.default
"""The operator that frozen graphs call."""


def _in_one_kernel(dims: Sequence[Any], tensors: tuple[Any, ...], groups: int) -> bool:
    """Whether the GPU's kernel can run: images and kernels belong to members, in one half precision, without gradients."""
    x, kernel, _, other = tensors
    given = [tensor for tensor in tensors if tensor is not None]
    if not (x.is_cuda and x.dtype in HALF) or dims[0] is None or dims[1] is None or groups != 1:
        return False
    if kernel.movedim(dims[1], 0).shape[2] < FEWEST or any(tensor.dtype != x.dtype for tensor in given):
        return False
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given):
        return False
    if other is not None and dims[3] is None:
        return False
    return has_triton() and can_be_an_operator(*given)


@functools.cache
def has_triton() -> bool:
    """Whether Triton compiles kernels for this GPU."""
    from torch.utils._triton import has_triton

    return bool(has_triton())


def _one_by_one(members: int, dims: Sequence[Any], *args: Any) -> tuple[Tensor, int]:
    """Runs a convolution of members, the addition and the ReLU, on images of four axes."""
    x, kernel, bias, other, relu, *how = args
    y, dim = convolution_of_members(members, dims[:3], x, kernel, bias, *how)
    if dim == 0:
        image, rows = in_rows(y), y.shape[:2]
        added = None if other is None else in_rows(first(other, dims[3], members))
    else:
        image, rows = beside(y), y.shape[:1]
        added = None if other is None else beside(second(other, dims[3], members))
    image = image if added is None else image + added
    image = F.relu(image) if relu else image
    return (image.unflatten(0, rows), 0) if dim == 0 else (by_member(image, members), 1)


def fused_kernel(
    x: Tensor,
    kernel: Tensor,
    bias: Tensor | None,
    other: Tensor | None,
    members: int,
    relu: bool,
    *how: list[int],
) -> Tensor:
    """Runs the kernel on x ``[B, (M C), H, W]`` and kernels ``[(M K), C, ...]``. Returns ``[B, (M K), ...]``, channels last.

    `how` is stride, padding and dilation.
    """
    from multitudes.engine.kernels.fused_kernel import run

    last: Any = {"memory_format": torch.channels_last}
    y = _result(x, kernel, *how)
    other = None if other is None else other.contiguous(**last)
    run(x.contiguous(**last), kernel.contiguous(**last), bias, other, y, members, relu, *how)
    return y


def _result(x: Tensor, kernel: Tensor, stride: list[int], padding: list[int], dilation: list[int]) -> Tensor:
    """Makes the empty result, with channels last."""
    sides = zip(x.shape[2:], kernel.shape[2:], stride, padding, dilation, strict=True)
    image = [(size + 2 * pad - step * (side - 1) - 1) // by + 1 for size, side, by, pad, step in sides]
    return torch.empty((x.shape[0], kernel.shape[0], *image), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


torch.library.impl(_library, "fused_kernel", "CUDA")(fused_kernel)
torch.library.register_fake(
    "multitudes::fused_kernel", lambda x, kernel, bias, other, members, relu, *how: _result(x, kernel, *how), lib=_library
)
