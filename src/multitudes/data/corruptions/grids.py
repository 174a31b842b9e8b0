"""Filters and resampling of batches of images, as matrices along rows and columns.

A linear filter of an axis of n pixels, with its treatment of edges, is an [n, n] matrix. A separable filter of images
``[..., H, W]`` is therefore R x Cᵀ, for any filter length and image size. The result for an image does not depend on its batch.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

Edge = Literal["nearest", "reflect", "mirror"]
"""How an image continues beyond its edge, with scipy's names: aaa|abcd|ddd, cba|abcd|dcb or dcb|abcd|cba."""


def fold(index: Array, size: int, edge: Edge) -> Array:
    """Maps positions beyond the edges of `size` pixels to the pixels whose values they take."""
    if edge == "nearest" or size == 1:
        return index.clip(0, size - 1)
    period = 2 * size if edge == "reflect" else 2 * size - 2
    index = index % period
    return np.minimum(index, period - index - (1 if edge == "reflect" else 0))


def gaussian_taps(sigma: float, reach: int) -> Array:
    """Gaussian at −reach, ..., reach, with sum 1."""
    if reach == 0:
        return np.ones(1)
    taps = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    return taps / taps.sum()


def filter_matrix(taps: Array, size: int, edge: Edge) -> Array:
    """Matrix of the correlation with an odd number of taps: out[i] = Σ_k taps[k] x[i + k − reach]."""
    reach = len(taps) // 2
    position = np.arange(size)[:, None]
    matrix = np.zeros((size, size))
    np.add.at(matrix, (position, fold(position + np.arange(-reach, reach + 1), size, edge)), taps)
    return matrix.astype(np.float32)


def zoom_matrix(size: int, factor: float) -> Array:
    """Matrix that enlarges an axis linearly about its middle and crops it to its length."""
    inner = int(np.ceil(size / factor))
    outer = max(round(inner * factor), size)
    at = (np.arange(size) + (outer - size) // 2) * ((inner - 1) / max(outer - 1, 1))
    below = np.floor(at).astype(int).clip(0, max(inner - 2, 0))
    matrix = np.zeros((size, size))
    first = (size - inner) // 2
    rows = np.arange(size)
    np.add.at(matrix, (rows, first + below), 1 - (at - below))
    np.add.at(matrix, (rows, first + np.minimum(below + 1, inner - 1)), at - below)
    return matrix.astype(np.float32)


def box_matrix(size: int, new: int) -> Array:
    """Matrix that resizes an axis from `size` to `new` pixels like Pillow's BOX: means over the old pixels inside a new one."""
    scale = size / new
    wide = max(scale, 1.0)
    centre = (np.arange(new)[:, None] + 0.5) * scale
    position = np.arange(size)
    first = np.floor(centre - wide / 2 + 0.5)
    offset = (position - centre + 0.5) * (1 / wide)  # in Pillow's order: a pixel may lie just on the border
    inside = (position >= first) & (offset > -0.5) & (offset <= 0.5)
    return (inside / inside.sum(1, keepdims=True)).astype(np.float32)


def apply_matrices(x: Array, rows: Array, columns: Array) -> Array:
    """Computes R x Cᵀ for every image and channel, ``[N, C, H, W]``."""
    return np.matmul(np.matmul(rows, x), np.ascontiguousarray(columns.T))


def gaussian(x: Array, sigma: float, edge: Edge = "nearest", truncate: float = 4.0) -> Array:
    """Gaussian filter, cut off at `truncate` sigmas."""
    reach = int(truncate * sigma + 0.5)
    return filter_both_axes(x, gaussian_taps(sigma, reach), edge)


def filter_both_axes(x: Array, taps: Array, edge: Edge) -> Array:
    """Filters by the same taps along rows and along columns."""
    return apply_matrices(x, filter_matrix(taps, x.shape[-2], edge), filter_matrix(taps, x.shape[-1], edge))


def correlate(x: Array, kernel: Array, edge: Edge) -> Array:
    """Correlates images with any kernel of odd sides, one kernel row at a time. Separable ones: `filter_both_axes`."""
    reach = len(kernel) // 2
    result = np.zeros_like(x)
    for k, taps in enumerate(kernel):
        if taps.any():
            rows = fold(np.arange(x.shape[-2]) + k - reach, x.shape[-2], edge)
            result += np.matmul(x[..., rows, :], np.ascontiguousarray(filter_matrix(taps, x.shape[-1], edge).T))
    return result


def take(x: Array, rows: Array, columns: Array) -> Array:
    """Picks pixels of images ``[N, C, H, W]`` by integer rows and columns, ``[N, ...]`` each; returns ``[N, C, ...]``."""
    index = (rows * x.shape[-1] + columns).reshape(len(x), 1, -1)
    return np.take_along_axis(x.reshape(*x.shape[:2], -1), index, axis=2).reshape(*x.shape[:2], *rows.shape[1:])


def bilinear(x: Array, rows: Array, columns: Array, edge: Edge) -> Array:
    """Samples each image bilinearly at the given rows and columns, ``[N, H, W]`` each."""
    top, left = np.floor(rows).astype(int), np.floor(columns).astype(int)
    down, right = (rows - top)[:, None].astype(np.float32), (columns - left)[:, None].astype(np.float32)
    y = [fold(top + step, x.shape[-2], edge) for step in (0, 1)]
    z = [fold(left + step, x.shape[-1], edge) for step in (0, 1)]
    upper = take(x, y[0], z[0]) * (1 - right) + take(x, y[0], z[1]) * right
    lower = take(x, y[1], z[0]) * (1 - right) + take(x, y[1], z[1]) * right
    return upper * (1 - down) + lower * down
