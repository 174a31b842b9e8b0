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
"""Pixels from a drop's rim beyond which one is as far as any."""

RELIEF = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
"""Lights drops from the upper left."""


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
    """Smoothed noise is liquid where it is more than `least`: water that shines at its rims, or mud that covers."""
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
    """Drops as if lit from a side, ``[N, 1, H, W]`` from 0 to 255: by how far each pixel is from the nearest rim."""
    level = equalised(np.floor(grids.filtered(rim_distance(liquid), np.ones(3) / 3, "mirror") + 1e-4))
    lit = grids.correlate(level.astype(np.float32), RELIEF, "mirror").clip(0, 255)
    return np.rint(grids.filtered(lit, np.ones(3) / 3, "mirror"))


def rim_distance(liquid: Array) -> Array:
    """From each pixel to the nearest one of liquid with a dry neighbour to the side, above or below; at most FAR."""
    rim = liquid & ~_all_beside(liquid)
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


def _all_beside(liquid: Array) -> Array:
    """Whether all four neighbours are liquid; beyond the image all is."""
    wide = np.pad(liquid, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=True)
    return wide[..., 2:, 1:-1] & wide[..., :-2, 1:-1] & wide[..., 1:-1, 2:] & wide[..., 1:-1, :-2]


def equalised(level: Array) -> Array:
    """Whole numbers below 256 spread so that each range holds as many pixels of its image; a flat image stays as it is."""
    count, pixels = len(level), level[0].size
    flat = level.reshape(count, -1).astype(int)
    histogram = np.bincount((flat + 256 * np.arange(count)[:, None]).ravel(), minlength=256 * count).reshape(count, 256)
    total = histogram.cumsum(1)
    lowest = np.take_along_axis(histogram, flat.min(1, keepdims=True), 1)
    spread = np.rint(255 * (total - lowest).clip(0) / np.maximum(pixels - lowest, 1))
    table = np.where(lowest == pixels, np.arange(256), spread)
    return np.take_along_axis(table, flat, 1).reshape(level.shape)
