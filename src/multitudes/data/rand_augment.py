"""RandAugment: random operations on each image of a batch, computed together for all images with the same operation.

Cubuk, Zoph, Shlens, Le, "RandAugment: Practical automated data augmentation with a reduced search space", CVPR workshops 2020,
https://arxiv.org/abs/1909.13719, with the fifteen operations, ranges and probabilities of timm's "rand-m9-n2-mstd1".

Operations work on 256 levels as in Pillow; floats from 0 to 1 are rounded to them. Rotation, shear and translation interpolate
bilinearly and fill with mid-grey (timm chooses bilinear or bicubic at random).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Generator, Tensor
from torch.nn import functional

from multitudes.data.images import check_images
from multitudes.settings import Count, at_least, between, check_settings, explained

MOST = 10.0
"""The largest magnitude."""

GREY = 128.0


@explained
@dataclass(frozen=True, kw_only=True)
class RandAugment:
    """Applies `n` operations to each image, drawn with replacement, each with probability `chance`.

    >>> images = torch.randint(256, (4, 3, 32, 32), dtype=torch.uint8)
    >>> RandAugment(magnitude=9, n=2, std=1)(images, torch.Generator().manual_seed(0)).shape
    torch.Size([4, 3, 32, 32])
    """

    magnitude: Annotated[float, between(0, MOST)] = 9
    """Strength from 0 to 10, in timm's ranges. Most operations grow with it. posterize and solarize are stronger the lower it
    is. color, contrast, brightness and sharpness do nothing at 5, weaken the image below and strengthen it above."""

    n: Count = 2
    """Number of operations drawn for an image."""

    std: Annotated[float, at_least(0)] = 1
    """Standard deviation of the magnitude, drawn for each operation and image and clipped to 0 and 10."""

    chance: Annotated[float, between(0, 1)] = 0.5
    """Probability that a drawn operation is applied."""

    increasing: bool = False
    """Whether all operations grow with the magnitude, as in timm's "inc1": posterize and solarize do more the higher it is, and
    color, contrast, brightness and sharpness weaken or strengthen the image, at random, by up to 0.9."""

    def __post_init__(self) -> None:
        check_settings(self)

    def __call__(self, images: Tensor, generator: Generator) -> Tensor:
        """Returns augmented copies of images ``[B, C, H, W]``, grey or RGB, uint8 or floats from 0 to 1."""
        values, device = levels(images), generator.device
        for _ in range(self.n):
            batch = (len(images),)
            kind = torch.randint(len(OPERATIONS), batch, generator=generator, device=device)
            done = torch.rand(batch, generator=generator, device=device) < self.chance
            level = (self.magnitude + self.std * torch.randn(batch, generator=generator, device=device)).clamp(0, MOST) / MOST
            sign = torch.randint(2, batch, generator=generator, device=device) * 2 - 1
            for k, (name, operation) in enumerate(OPERATIONS.items()):
                rows = (done & (kind == k)).nonzero()[:, 0]
                if len(rows):
                    where = rows.to(values.device)
                    strength = rising(name, level, sign) if self.increasing else level
                    arguments = (part[rows].to(values.device)[:, None, None, None] for part in (strength, sign))
                    values[where] = operation(values[where], *arguments)
        return values.to(torch.uint8) if images.dtype == torch.uint8 else (values / 255).to(images.dtype)


def rising(name: str, level: Tensor, sign: Tensor) -> Tensor:
    """Returns the level at which an operation is as strong as its increasing variant is at `level`."""
    if name == "posterize":
        return 1 - (4 * level).floor() / 4
    if name == "solarize":
        return 1 - (256 * level).floor() / 256
    return (1 + sign * level) / 2 if name in ("color", "contrast", "brightness", "sharpness") else level


def levels(images: Tensor) -> Tensor:
    """Copies images to floats with whole values from 0 to 255."""
    check_images(images, unit=True)
    if images.dtype == torch.uint8:
        return images.to(torch.float32)
    return (images.detach().to(torch.float32) * 255).round()


def autocontrast(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Stretches each channel to the full range. A channel with a single value stays as it is."""
    low, high = x.double().amin((2, 3), keepdim=True), x.double().amax((2, 3), keepdim=True)
    scale = torch.full_like(low, 255) / (high - low).clamp(min=1)  # a number over a tensor is rounded twice
    return torch.where(high > low, (x * scale - low * scale).floor().clamp(0, 255), x.double()).to(x)


def equalize(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Equalises the histogram of each channel."""
    count, pixels = x.shape[0] * x.shape[1], x.shape[2] * x.shape[3]
    flat = x.reshape(count, pixels).long()
    histogram = torch.zeros(count, 256, dtype=torch.long, device=x.device).scatter_add_(1, flat, torch.ones_like(flat))
    last = histogram.gather(1, flat.amax(1, keepdim=True))
    step = (pixels - last) // 255
    before = histogram.cumsum(1) - histogram
    table = ((before + step // 2) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, table.gather(1, flat), flat).to(x.dtype).reshape(x.shape)


def invert(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Inverts dark and light."""
    return 255 - x


def posterize(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Keeps the highest 0 to 4 bits of each value: fewer at a lower level, as in timm."""
    step = torch.exp2(8 - (level * 4).floor())
    return (x / step).floor() * step


def solarize(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Inverts values that are at least 256 times the level."""
    return torch.where(x < (level * 256).floor(), x, 255 - x)


def solarize_add(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Adds up to 110 to values below 128."""
    return torch.where(x < 128, (x + (level * 110).floor()).clamp(max=255), x)


def color(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Multiplies the saturation by a factor from 0.1 to 1.9 (`level` 0 to 1)."""
    return _blend(_grey(x), x, level)


def contrast(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Multiplies the contrast to the image's mean grey by a factor from 0.1 to 1.9 (`level` 0 to 1)."""
    return _blend((_grey(x).mean((2, 3), keepdim=True) + 0.5).floor(), x, level)


def brightness(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Multiplies the brightness by a factor from 0.1 to 1.9 (`level` 0 to 1)."""
    return _blend(torch.zeros_like(x), x, level)


def sharpness(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Multiplies the difference from the smoothed image by a factor from 0.1 to 1.9; the outermost pixels stay."""
    if min(x.shape[-2:]) < 3:
        return x
    kernel = torch.ones(1, 1, 3, 3, device=x.device)
    kernel[..., 1, 1] = 5
    smoothed = x.clone()
    inner = functional.conv2d(x.flatten(0, 1)[:, None], kernel)[:, 0].unflatten(0, x.shape[:2])
    smoothed[..., 1:-1, 1:-1] = (inner / 13 + 0.5).floor()
    return _blend(smoothed, x, level)


def rotate(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Rotates by up to 30° about the centre."""
    angle = torch.deg2rad(-30 * level * sign)
    cos, sin, height, width = angle.cos(), angle.sin(), x.shape[-2], x.shape[-1]
    right = width / 2 - cos * width / 2 - sin * height / 2
    return _affine(x, cos, sin, right, -sin, cos, height / 2 + sin * width / 2 - cos * height / 2)


def shear_x(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Shears rows by up to 0.3 pixels per row."""
    one, none = torch.ones_like(level), torch.zeros_like(level)
    return _affine(x, one, 0.3 * level * sign, none, none, one, none)


def shear_y(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Shears columns by up to 0.3 pixels per column."""
    one, none = torch.ones_like(level), torch.zeros_like(level)
    return _affine(x, one, none, none, 0.3 * level * sign, one, none)


def translate_x(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Moves sideways by up to 0.45 of the width."""
    one, none = torch.ones_like(level), torch.zeros_like(level)
    return _affine(x, one, none, 0.45 * level * sign * x.shape[-1], none, one, none)


def translate_y(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Moves up or down by up to 0.45 of the height."""
    one, none = torch.ones_like(level), torch.zeros_like(level)
    return _affine(x, one, none, none, none, one, 0.45 * level * sign * x.shape[-2])


OPERATIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    operation.__name__: operation
    for operation in (
        autocontrast, equalize, invert, rotate, posterize, solarize, solarize_add, color, contrast, brightness, sharpness,
        shear_x, shear_y, translate_x, translate_y,
    )
}  # fmt: skip
"""Operations on images ``[b, C, H, W]`` of whole values from 0 to 255, with levels from 0 to 1 and signs ``[b, 1, 1, 1]``."""


def _grey(x: Tensor) -> Tensor:
    """Grey images ``[b, 1, H, W]``, with Pillow's weights and rounding."""
    if x.shape[1] == 1:
        return x
    red, green, blue = x.long().unbind(1)
    return ((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16)[:, None].to(x.dtype)


def _blend(dull: Tensor, x: Tensor, level: Tensor) -> Tensor:
    """Computes dull + factor (x − dull), with a factor from 0.1 to 1.9."""
    return (dull + (0.1 + 1.8 * level) * (x - dull)).clamp(0, 255).floor()


def _affine(x: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor) -> Tensor:
    """Samples the image at (a x + b y + c, d x + e y + f) for each pixel centre (x, y); grey outside the image."""
    height, width = x.shape[-2:]
    across = torch.arange(width, device=x.device) + 0.5
    down = (torch.arange(height, device=x.device) + 0.5)[:, None]
    column, row = (a * across + b * down + c)[:, 0], (d * across + e * down + f)[:, 0]  # [b, H, W]
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    column, row = column - 0.5, row - 0.5
    left, top = column.floor(), row.floor()
    flat, result = x.flatten(2), torch.zeros_like(x)
    for y, share in ((top, 1 - (row - top)), (top + 1, row - top)):
        for z, part in ((left, 1 - (column - left)), (left + 1, column - left)):
            index = (y.clamp(0, height - 1) * width + z.clamp(0, width - 1)).long().flatten(1)
            values = flat.gather(2, index[:, None].expand(-1, x.shape[1], -1)).reshape(x.shape)
            result += values * (share * part)[:, None]
    return torch.where(inside[:, None], result.round().clamp(0, 255), torch.full_like(x, GREY))
