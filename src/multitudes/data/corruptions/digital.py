"""Digital corruptions: brightness, contrast, saturation, pixels, JPEG, elastic transform; and conversion to grey."""

from __future__ import annotations

import io

import numpy as np

from multitudes.data.corruptions import grids
from multitudes.data.corruptions.grids import Array
from multitudes.data.corruptions.noise import Rngs, uniform
from multitudes.errors import InputError

LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)


def grey(x: Array) -> Array:
    """Converts images to grey, ``[N, 1, H, W]``."""
    return x if x.shape[1] == 1 else np.einsum("nchw,c->nhw", x, LUMA)[:, None]


def tone(x: Array, colour: tuple[float, float, float]) -> Array:
    """Returns a colour, ``[C, 1, 1]``, for images with C channels: its RGB values, or its grey value if C is 1."""
    rgb = np.array(colour, dtype=np.float32)
    return rgb[:, None, None] if x.shape[1] == 3 else (rgb @ LUMA).reshape(1, 1, 1)


def brightness(x: Array, rngs: Rngs, more: float) -> Array:
    """Raises the value of HSV by `more`; hue and saturation stay."""
    value = x.max(1, keepdims=True)
    raised = np.minimum(value + more, 1)
    return np.where(value > 0, x * (raised / np.where(value > 0, value, 1)), raised).astype(np.float32)


def contrast(x: Array, rngs: Rngs, share: float) -> Array:
    """Moves values towards the mean of each channel; `share` of the difference remains."""
    mean = x.mean((2, 3), keepdims=True)
    return (x - mean) * share + mean


def saturate(x: Array, rngs: Rngs, factor: float, more: float) -> Array:
    """Multiplies the saturation of HSV and adds a constant. Pixels without a hue count as red, so grey images darken."""
    if x.shape[1] == 1:
        return grey(saturate(np.repeat(x, 3, 1), rngs, factor, more))
    value = x.max(1, keepdims=True)
    chroma = value - x.min(1, keepdims=True)
    old = chroma / np.where(value > 0, value, 1)
    new = (old * factor + more).clip(0, 1)
    coloured = value - (value - x) * (new / np.where(old > 0, old, 1))
    red = value * np.concatenate([np.ones_like(new), 1 - new, 1 - new], 1)
    return np.where(chroma > 0, coloured, red).astype(np.float32)


def pixelate(x: Array, rngs: Rngs, share: float) -> Array:
    """Shrinks the image to a fraction `share` of its sides by box averages, and enlarges it again."""
    matrices = []
    for size in x.shape[-2:]:
        fewer = max(1, int(size * share))
        matrices.append(grids.box_matrix(fewer, size) @ grids.box_matrix(size, fewer))
    return grids.apply_matrices(x, *matrices)


def jpeg_compression(x: Array, rngs: Rngs, quality: float) -> Array:
    """Compresses to JPEG at this quality and decompresses."""
    try:
        from PIL import Image
    except ImportError as error:
        raise InputError("jpeg_compression needs Pillow: pip install 'multitudes[data]'") from error
    images = []
    for pixels in np.rint(x * 255).astype(np.uint8).transpose(0, 2, 3, 1):
        file = io.BytesIO()
        Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(file, "JPEG", quality=int(quality))
        images.append(np.asarray(Image.open(file)).reshape(pixels.shape))
    return np.stack(images).transpose(0, 3, 1, 2).astype(np.float32) / 255


def elastic_transform(x: Array, rngs: Rngs, strength: float, smoothness: float, slant: float) -> Array:
    """Applies a random affine map, then moves each pixel by a smooth random field.

    All three parameters are fractions of the shorter side: `strength`, the largest move of pixels; `smoothness`, the sigma of
    the Gaussian that smooths the field; `slant`, the largest move of the three points that define the affine map.
    """
    height, width = x.shape[-2:]
    side = min(height, width)
    rows, columns = np.mgrid[:height, :width].astype(np.float64)
    corners = uniform(rngs, -side * slant, side * slant, 3, 2)
    x = grids.bilinear(x, *_affine_sources(rows, columns, max(side // 3, 1), corners), "mirror")
    moves = [
        grids.gaussian(uniform(rngs, -1, 1, height, width), side * smoothness, "reflect", truncate=3) * (side * strength)
        for _ in range(2)
    ]
    return grids.bilinear(x, rows + moves[1], columns + moves[0], "reflect")


def _affine_sources(rows: Array, columns: Array, half: int, moves: Array) -> tuple[Array, Array]:
    """Returns the source row and column of each pixel, ``[N, H, W]`` each, if three corners of a square move by `moves`."""
    middle = np.array([(columns.max() + 1) // 2, (rows.max() + 1) // 2])
    corners = middle + half * np.array([[1, 1], [1, -1], [-1, -1]])
    moved = np.concatenate([corners + moves, np.ones((len(moves), 3, 1))], 2)
    back = np.linalg.solve(moved, np.broadcast_to(corners.astype(np.float64), moves.shape))  # [N, 3, 2]
    points = np.stack([columns, rows, np.ones_like(rows)], -1) @ back[:, None]  # [N, H, W, 2]
    return points[..., 1], points[..., 0]
