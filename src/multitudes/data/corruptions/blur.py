"""Blur: defocus, frosted glass, motion, zoom, Gaussian."""

from __future__ import annotations

import numpy as np

from multitudes.data.corruptions import grids
from multitudes.data.corruptions.grids import Array
from multitudes.data.corruptions.noise import Rngs, uniform


def defocus_blur(x: Array, rngs: Rngs, radius: float, soft: float) -> Array:
    """Replaces each pixel by the mean over a disc with a softened rim."""
    return grids.correlate(x, disc(radius, soft), "mirror")


def disc(radius: float, soft: float) -> Array:
    """Kernel of a disc with sum 1, smoothed by a Gaussian of 3 or 5 taps."""
    reach = max(8, int(radius))
    square = np.arange(-reach, reach + 1) ** 2
    hard = (square[:, None] + square <= radius**2).astype(np.float64)
    kernel = grids.filter_both_axes(hard / hard.sum(), grids.gaussian_taps(soft, 1 if radius <= 8 else 2), "mirror")
    used = np.flatnonzero(kernel.max(0) > 1e-8)
    return kernel[used[0] : used[-1] + 1, used[0] : used[-1] + 1]


def glass_blur(x: Array, rngs: Rngs, sigma: float, reach: float, times: float) -> Array:
    """Replaces each pixel by a random neighbour, in order from the lower right, between two Gaussian filters.

    The neighbour lies up to `reach` pixels before or `reach` − 1 after the pixel, on both axes. The published script seems to
    swap the two pixels; but both are views of one array, so it copies one onto the other. This function copies too.
    """
    far, (height, width) = int(reach), x.shape[-2:]
    rows, columns = np.arange(height - far, far, -1), np.arange(width - far, far, -1)
    pixels = (rows[:, None] * width + columns).ravel()
    blurred = grids.gaussian(x, sigma)
    flat = blurred.reshape(*x.shape[:2], -1)
    for i, rng in enumerate(rngs):
        moves = rng.integers(-far, far, (int(times), len(pixels), 2))
        flat[i] = flat[i][:, _copy_sources(height * width, pixels, pixels + moves[..., 0] * width + moves[..., 1])]
    return grids.gaussian(blurred, sigma)


def _copy_sources(size: int, pixels: Array, neighbours: Array) -> list[int]:
    """Index of the original pixel whose value each pixel has after all copies. Lists are ten times as fast as arrays here."""
    sources = list(range(size))
    first = pixels.tolist()
    for second in neighbours.tolist():
        for i, j in zip(first, second, strict=True):
            sources[i] = sources[j]
    return sources


def motion_blur(x: Array, rngs: Rngs, radius: float, sigma: float) -> Array:
    """Smears along a random direction within 45° of the horizontal, with Gaussian weights."""
    return trail(x, uniform(rngs, -45, 45)[:, None], radius, sigma)


def trail(x: Array, angle: Array, radius: float, sigma: float, edge: grids.Edge = "nearest") -> Array:
    """Smears each image along its own angle in degrees, ``[N, 1]``: weighted sum of pixels at whole steps up to 2 radius."""
    weights = np.exp(-0.5 * (np.arange(2 * int(np.ceil(radius)) + 1) / sigma) ** 2)
    steps = np.arange(len(weights))
    right = np.ceil(steps * np.cos(np.deg2rad(angle)) - 0.5).astype(int)  # [N, steps]
    down = np.ceil(steps * np.sin(np.deg2rad(angle)) - 0.5).astype(int)
    rows, columns = np.arange(x.shape[-2]), np.arange(x.shape[-1])
    result = np.zeros_like(x)
    for k, weight in enumerate(weights / weights.sum()):
        if weight > 1e-7:
            y = grids.fold(rows + down[:, k, None], x.shape[-2], edge)[:, :, None]
            z = grids.fold(columns + right[:, k, None], x.shape[-1], edge)[:, None, :]
            result += np.float32(weight) * grids.take(x, *np.broadcast_arrays(y, z))
    return result


def zoom_blur(x: Array, rngs: Rngs, stop: float, step: float) -> Array:
    """Averages the image with its enlargements by 1, 1 + step, ... up to `stop`."""
    factors = np.arange(1, stop, step)
    total = x.copy()
    for factor in factors:
        total += grids.apply_matrices(x, grids.zoom_matrix(x.shape[-2], factor), grids.zoom_matrix(x.shape[-1], factor))
    return total / (len(factors) + 1)


def gaussian_blur(x: Array, rngs: Rngs, sigma: float) -> Array:
    """Applies a Gaussian filter."""
    return grids.gaussian(x, sigma)
