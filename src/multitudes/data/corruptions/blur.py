"""Blur: out of focus, through frosted glass, by motion, by zooming."""

from __future__ import annotations

import numpy as np

from multitudes.data.corruptions import grids
from multitudes.data.corruptions.grids import Array
from multitudes.data.corruptions.noise import Rngs, uniform


def defocus_blur(x: Array, rngs: Rngs, radius: float, soft: float) -> Array:
    """The mean over a disc whose rim is softened."""
    return grids.correlate(x, disc(radius, soft), "mirror")


def disc(radius: float, soft: float) -> Array:
    """A disc of sum one on a grid that reaches 8 pixels or the radius, after a Gaussian of 3 or 5 taps."""
    reach = max(8, int(radius))
    square = np.arange(-reach, reach + 1) ** 2
    hard = (square[:, None] + square <= radius**2).astype(np.float64)
    kernel = grids.filtered(hard / hard.sum(), grids.gaussian_taps(soft, 1 if radius <= 8 else 2), "mirror")
    used = np.flatnonzero(kernel.max(0) > 1e-8)
    return kernel[used[0] : used[-1] + 1, used[0] : used[-1] + 1]


def glass_blur(x: Array, rngs: Rngs, sigma: float, reach: float, times: float) -> Array:
    """Pixels take the place of neighbours, one after the other from the lower right, between two Gaussian filters.

    A pixel becomes what lies up to `reach` before it or `reach` − 1 after it, in both directions. The published script is
    written as if the two changed places, but as both are views of one array, the one is copied onto the other: so it is here.
    """
    far, (height, width) = int(reach), x.shape[-2:]
    rows, columns = np.arange(height - far, far, -1), np.arange(width - far, far, -1)
    own = (rows[:, None] * width + columns).ravel()
    blurred = grids.gaussian(x, sigma)
    flat = blurred.reshape(*x.shape[:2], -1)
    for i, rng in enumerate(rngs):
        moves = rng.integers(-far, far, (int(times), len(own), 2))
        flat[i] = flat[i][:, _shuffled(height * width, own, own + moves[..., 0] * width + moves[..., 1])]
    return grids.gaussian(blurred, sigma)


def _shuffled(size: int, own: Array, other: Array) -> list[int]:
    """Where each pixel comes from, after passes of copies in their order; lists are ten times as quick as arrays at that."""
    found = list(range(size))
    first = own.tolist()
    for second in other.tolist():
        for i, j in zip(first, second, strict=True):
            found[i] = found[j]
    return found


def motion_blur(x: Array, rngs: Rngs, radius: float, sigma: float) -> Array:
    """A trail that fades as a Gaussian, in a direction within 45° of the horizontal."""
    return trail(x, uniform(rngs, -45, 45)[:, None], radius, sigma)


def trail(x: Array, angle: Array, radius: float, sigma: float, edge: grids.Edge = "nearest") -> Array:
    """Each image drawn along its own angle in degrees, ``[N, 1]``: pixels at whole steps, the last 2 radius away."""
    weights = np.exp(-0.5 * (np.arange(2 * int(np.ceil(radius)) + 1) / sigma) ** 2)
    steps = np.arange(len(weights))
    right = np.ceil(steps * np.cos(np.deg2rad(angle)) - 0.5).astype(int)  # [N, steps]
    down = np.ceil(steps * np.sin(np.deg2rad(angle)) - 0.5).astype(int)
    rows, columns = np.arange(x.shape[-2]), np.arange(x.shape[-1])
    found = np.zeros_like(x)
    for k, weight in enumerate(weights / weights.sum()):
        if weight > 1e-7:
            y = grids.fold(rows + down[:, k, None], x.shape[-2], edge)[:, :, None]
            z = grids.fold(columns + right[:, k, None], x.shape[-1], edge)[:, None, :]
            found += np.float32(weight) * grids.take(x, *np.broadcast_arrays(y, z))
    return found


def zoom_blur(x: Array, rngs: Rngs, stop: float, step: float) -> Array:
    """The mean of the image and of it enlarged by 1, 1 + step, ... up to `stop`."""
    factors = np.arange(1, stop, step)
    found = x.copy()
    for factor in factors:
        found += grids.along(x, grids.zoom_matrix(x.shape[-2], factor), grids.zoom_matrix(x.shape[-1], factor))
    return found / (len(factors) + 1)


def gaussian_blur(x: Array, rngs: Rngs, sigma: float) -> Array:
    """A Gaussian filter."""
    return grids.gaussian(x, sigma)
