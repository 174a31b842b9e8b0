"""Pools of all members at once, on images whose channels lie beside each other.

vmap would take members for rows, and copy images whose channels lie beside each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from multitudes.engine.kernels.convolution import beside, by_member, first, in_rows, run_under_vmap

_library = torch.library.Library("multitudes", "FRAGMENT")
_library.define(
    "max_pool2d(Tensor x, SymInt[] kernel, SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool ceil) -> Tensor"
)
_library.define(
    "avg_pool2d(Tensor x, SymInt[] kernel, SymInt[] stride, SymInt[] padding, bool ceil, bool border, SymInt? divisor)"
    " -> Tensor"
)

Pool = Callable[..., Tensor]


@torch.library.impl(_library, "max_pool2d", "CompositeImplicitAutograd")
def max_pool2d(x: Tensor, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int], ceil: bool) -> Tensor:
    """Takes the largest number of each window; under vmap `max_pool2d_of_members` takes its place."""
    return torch.max_pool2d(x, kernel, stride, padding, dilation, ceil)


@torch.library.impl(_library, "avg_pool2d", "CompositeImplicitAutograd")
def avg_pool2d(
    x: Tensor, kernel: list[int], stride: list[int], padding: list[int], ceil: bool, border: bool, divisor: int | None
) -> Tensor:
    """Averages each window; under vmap `avg_pool2d_of_members` takes its place."""
    return F.avg_pool2d(x, kernel, stride, padding, ceil, border, divisor)


def _of_members(pool: Pool, members: int, dims: Sequence[Any], x: Tensor, how: Sequence[Any]) -> tuple[Tensor, int]:
    if dims[0] == 1:
        return by_member(pool(beside(x), *how), members), 1
    rows = first(x, dims[0], members)
    return pool(in_rows(rows), *how).unflatten(0, rows.shape[:2]), 0


def max_pool2d_of_members(members: int, dims: Sequence[Any], x: Tensor, *how: Any) -> tuple[Tensor, int]:
    """Takes the largest numbers of all members. Returns also the member axis."""
    return _of_members(max_pool2d, members, dims, x, how)


def avg_pool2d_of_members(members: int, dims: Sequence[Any], x: Tensor, *how: Any) -> tuple[Tensor, int]:
    """Averages for all members. Returns also the member axis."""
    return _of_members(avg_pool2d, members, dims, x, how)


run_under_vmap("max_pool2d", max_pool2d_of_members, _library)
run_under_vmap("avg_pool2d", avg_pool2d_of_members, _library)
