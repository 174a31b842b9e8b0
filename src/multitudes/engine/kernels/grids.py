"""Samples of images at the points of a grid, of all members at once.

vmap's own rule mixes rows with members if these lie along different axes of images and grids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from multitudes.engine.kernels.convolution import beside, by_member, run_under_vmap, second

_library = torch.library.Library("multitudes", "FRAGMENT")
_library.define("grid_sampler(Tensor x, Tensor grid, int mode, int padding, bool corners) -> Tensor")


@torch.library.impl(_library, "grid_sampler", "CompositeImplicitAutograd")
def grid_sampler(x: Tensor, grid: Tensor, mode: int, padding: int, corners: bool) -> Tensor:
    """Samples images at the points of a grid; under vmap `grid_sampler_of_members` takes its place."""
    return torch.grid_sampler(x, grid, mode, padding, corners)


def grid_sampler_of_members(
    members: int, dims: Sequence[Any], x: Tensor, grid: Tensor, mode: int, padding: int, corners: bool
) -> tuple[Tensor, int]:
    """Samples the images of each member at its points. Returns also the member axis."""
    how = (mode, padding, corners)
    if dims[1] is None:  # the same points: members are further channels
        return by_member(grid_sampler(beside(second(x, dims[0], members)), grid, *how), members), 1
    if dims[0] is None:  # the same images: members are further points
        points = grid.movedim(dims[1], 1)
        return grid_sampler(x, points.flatten(1, 2), *how).unflatten(2, points.shape[1:3]), 2
    rows, points = x.movedim(dims[0], 0), grid.movedim(dims[1], 0)
    return grid_sampler(rows.flatten(0, 1), points.flatten(0, 1), *how).unflatten(0, rows.shape[:2]), 0


run_under_vmap("grid_sampler", grid_sampler_of_members, _library)
