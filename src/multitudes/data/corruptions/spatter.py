"""Spatter: drops of water or of mud on the lens."""

from __future__ import annotations

import numpy as np

from multitudes.data.corruptions import grids
from multitudes.data.corruptions.digital import tone
from multitudes.data.corruptions.grids import Array
from multitudes.data.corruptions.noise import Rngs, normal

WATER = (175 / 255, 238 / 255, 238 / 255)
MUD = (63 / 255, 42 / 255, 20 / 255)

FAR = 20
"""Largest distance from a drop's rim, in pixels; larger distances are set to this one."""

RELIEF = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
"""Kernel that lights drops from the upper left."""


def spatter(
    x: Array,
    rngs: Rngs,
    mean: float,
    spread: float,
    sigma: float,
    least: float,
    strength: float,
    mud: float,
) -> Array:
    """Adds drops where smoothed noise exceeds `least`: water that shines at its rims, or mud that covers the image."""
    liquid = grids.gaussian(mean + spread * normal(rngs, 1, *x.shape[-2:]), sigma)
    if mud:
        cover = grids.gaussian((liquid > least).astype(np.float32), strength)
        cover[cover < 0.8] = 0
        return x * (1 - cover) + tone(x, MUD) * cover
    liquid = np.where(liquid < least, 0, liquid)
    shine = np.floor(liquid.clip(0, 1) * 255) * relief(liquid > 0)
    most = shine.max((1, 2, 3), keepdims=True)
    return x + strength * tone(x, WATER) * shine / np.where(most > 0, most, 1)


def relief(liquid: Array) -> Array:
    """Shades drops as if lit from one side: returns ``[N, 1, H, W]`` from 0 to 255. Uses the distance to the nearest rim."""
    level = equalise(np.floor(grids.filter_both_axes(rim_distance(liquid), np.ones(3) / 3, "mirror") + 1e-4))
    lit = grids.correlate(level.astype(np.float32), RELIEF, "mirror").clip(0, 255)
    return np.rint(grids.filter_both_axes(lit, np.ones(3) / 3, "mirror"))


def rim_distance(liquid: Array) -> Array:
    """Distance of each pixel to the nearest liquid pixel with a dry neighbour (left, right, above, below); at most FAR."""
    rim = liquid & ~_neighbours_liquid(liquid)
    squares = np.where(rim, 0, FAR**2).astype(np.float32)
    for axis in (2, 3):
        nearest = squares.copy()
        for k in range(1, min(FAR, squares.shape[axis])):
            here, there = [slice(None)] * 4, [slice(None)] * 4
            here[axis], there[axis] = slice(k, None), slice(None, -k)
            for one, other in ((tuple(here), tuple(there)), (tuple(there), tuple(here))):
                nearest[one] = np.minimum(nearest[one], squares[other] + k * k)
        squares = nearest
    return np.sqrt(squares)


def _neighbours_liquid(liquid: Array) -> Array:
    """Whether all four neighbours of each pixel are liquid; pixels outside the image count as liquid."""
    wide = np.pad(liquid, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=True)
    return wide[..., 2:, 1:-1] & wide[..., :-2, 1:-1] & wide[..., 1:-1, 2:] & wide[..., 1:-1, :-2]


def equalise(level: Array) -> Array:
    """Equalises the histogram of each image of whole values below 256. An image with a single value stays as it is."""
    count, pixels = len(level), level[0].size
    flat = level.reshape(count, -1).astype(int)
    histogram = np.bincount((flat + 256 * np.arange(count)[:, None]).ravel(), minlength=256 * count).reshape(count, 256)
    total = histogram.cumsum(1)
    lowest = np.take_along_axis(histogram, flat.min(1, keepdims=True), 1)
    spread = np.rint(255 * (total - lowest).clip(0) / np.maximum(pixels - lowest, 1))
    table = np.where(lowest == pixels, np.arange(256), spread)
    return np.take_along_axis(table, flat, 1).reshape(level.shape)
