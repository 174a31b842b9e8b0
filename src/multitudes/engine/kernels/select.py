"""Selections of channels of all members at once, each by its own index.

vmap would make an index as large as the result. Here the members' channels lie beside each other, and one short index selects
among all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch as functorch

from multitudes.engine.kernels.convolution import beside, by_member, channels_last, run_under_vmap, second

_library = torch.library.Library("multitudes", "FRAGMENT")
_library.define("index_select(Tensor x, int axis, Tensor index) -> Tensor")


@torch.library.impl(_library, "index_select", "CompositeImplicitAutograd")
def index_select(x: Tensor, axis: int, index: Tensor) -> Tensor:
    """Selects by one index; under vmap `index_select_of_members` takes its place."""
    return x.index_select(axis, index)


def select_channels(x: Tensor, axis: int, index: Tensor) -> Tensor:
    """Selects channels of one network, which stay last if they were: `index_select` alone would put them first."""
    images = x.ndim == 4 and axis in (1, -3)
    if images and not functorch.is_functorch_wrapped_tensor(x) and x.stride(1) == 1 and x.shape[1] > 1:
        return x.movedim(1, -1).index_select(-1, index).movedim(-1, 1)
    return x.index_select(axis, index)


def index_select_of_members(members: int, dims: Sequence[Any], x: Tensor, axis: int, index: Tensor) -> tuple[Tensor, int]:
    """Selects for each member, by its own index or by one for all. Returns also the member axis."""
    ndim = x.ndim - (dims[0] is not None)
    axis %= ndim
    if dims[2] is None:
        assert dims[0] is not None, "a selection without members"
        return x.movedim(dims[0], 0).index_select(axis + 1, index), 0
    index = index.movedim(dims[2], 0)
    if dims[0] is None:  # all members select from the same channels
        return x.index_select(axis, index.flatten()).unflatten(axis, index.shape), axis
    starts = torch.arange(members, device=index.device).unsqueeze(1) * x.movedim(dims[0], 0).shape[axis + 1]
    every = (index + starts).flatten()
    if axis == 1:
        given = second(x, dims[0], members)
        flat = beside(given)
        last = channels_last(given)  # the result of index_select would not have them last
        y = flat.movedim(1, -1).index_select(-1, every).movedim(-1, 1) if last else flat.index_select(1, every)
        return by_member(y, members), 1
    y = x.movedim(dims[0], axis).flatten(axis, axis + 1).index_select(axis, every)
    return y.unflatten(axis, index.shape), axis


run_under_vmap("index_select", index_select_of_members, _library)
