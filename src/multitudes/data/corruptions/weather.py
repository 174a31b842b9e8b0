"""Weather: generated snow, frost and fog."""

from __future__ import annotations

import numpy as np

from multitudes.data.corruptions import grids
from multitudes.data.corruptions.blur import trail
from multitudes.data.corruptions.digital import grey, tone
from multitudes.data.corruptions.grids import Array
from multitudes.data.corruptions.noise import Rngs, normal, uniform

ICE = (0.86, 0.95, 1.0)
"""RGB colour of frost."""


def snow(
    x: Array,
    rngs: Rngs,
    mean: float,
    spread: float,
    zoom: float,
    least: float,
    radius: float,
    sigma: float,
    keep: float,
) -> Array:
    """Whitens the image and adds flakes: enlarged noise above `least`, smeared downwards, and the same turned by 180°."""
    height, width = x.shape[-2:]
    flakes = mean + spread * normal(rngs, 1, height, width)
    flakes = grids.apply_matrices(flakes, grids.zoom_matrix(height, zoom), grids.zoom_matrix(width, zoom))
    flakes = np.where(flakes < least, 0, flakes).clip(0, 1).astype(np.float32)
    flakes = trail(flakes, uniform(rngs, -135, -45)[:, None], radius, sigma)
    whitened = keep * x + (1 - keep) * np.maximum(x, grey(x) * 1.5 + 0.5)
    return whitened + flakes + flakes[..., ::-1, ::-1]


def frost(x: Array, rngs: Rngs, keep: float, amount: float) -> Array:
    """Mixes the image with ice: keep · x + amount · ice."""
    return keep * x + amount * ice(rngs, *x.shape[-2:]) * tone(x, ICE)


def ice(rngs: Rngs, height: int, width: int) -> Array:
    """Generates ice, ``[N, 1, H, W]`` from 0 to 1: needles in six directions on a plasma (the authors used photographs)."""
    turn = uniform(rngs, 0, 60)[:, None]
    seeds = grids.gaussian(normal(rngs, 1, height, width), 0.5)
    crystals = np.zeros_like(seeds)
    for reach in (max(2, width // 16), max(1, width // 64)):
        needles = np.max([trail(seeds, turn + angle, reach, reach, "reflect") for angle in range(0, 360, 60)], axis=0)
        needles -= needles.mean((2, 3), keepdims=True)
        crystals += needles / (needles.std((2, 3), keepdims=True) + 1e-6)
    patches = plasma(rngs, height, width, 1.6)[:, None]
    return (0.9 * patches + 0.16 * np.maximum(crystals, -1) * (0.15 + patches)).clip(0, 1).astype(np.float32)


def fog(x: Array, rngs: Rngs, amount: float, decay: float) -> Array:
    """Adds a plasma (a random fractal) and rescales to the range of the image."""
    most = x.max((1, 2, 3), keepdims=True)
    return (x + amount * plasma(rngs, x.shape[-2], x.shape[-1], decay)[:, None]) * (most / (most + amount))


def plasma(rngs: Rngs, height: int, width: int, decay: float) -> Array:
    """Generates a fractal by the diamond-square algorithm, ``[N, H, W]`` from 0 to 1, on a torus whose side is a power of two.

    A point between four others is their mean plus a uniform number, whose range is divided by decay² when the step is halved.
    """
    side = 1 << max(height - 1, width - 1, 1).bit_length()
    field = np.zeros((len(rngs), side, side))
    step, reach = side, 1.0
    while step >= 2:
        half = step // 2
        corners = field[:, ::step, ::step]
        pairs = corners + np.roll(corners, -1, 1)
        centres = (pairs + np.roll(pairs, -1, 2)) / 4 + uniform(rngs, -reach, reach, *corners.shape[1:])
        field[:, half::step, half::step] = centres
        above = (centres + np.roll(centres, 1, 1) + corners + np.roll(corners, -1, 2)) / 4
        beside = (centres + np.roll(centres, 1, 2) + corners + np.roll(corners, -1, 1)) / 4
        field[:, ::step, half::step] = above + uniform(rngs, -reach, reach, *corners.shape[1:])
        field[:, half::step, ::step] = beside + uniform(rngs, -reach, reach, *corners.shape[1:])
        step, reach = half, reach / decay**2
    field -= field.min((1, 2), keepdims=True)
    return (field / field.max((1, 2), keepdims=True))[:, :height, :width].astype(np.float32)
