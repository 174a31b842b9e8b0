"""RandAugment: operations by chance on each image, those of one kind done together.

Cubuk, Zoph, Shlens, Le, "RandAugment: Practical automated data augmentation with a reduced search space", CVPR workshops 2020,
https://arxiv.org/abs/1909.13719, with the fifteen operations, their ranges and chances of timm's "rand-m9-n2-mstd1".

Operations are defined on 256 levels as in Pillow, and floats from 0 to 1 are taken to those levels. Turned, sheared and moved
images are interpolated bilinearly, and what comes in is mid-grey (timm takes bilinear or bicubic by chance).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Generator, Tensor
from torch.nn import functional

from multitudes.errors import InputError
from multitudes.settings import Count, at_least, between, check_settings

MOST = 10.0
"""The largest magnitude."""

GREY = 128.0


@dataclass(frozen=True, kw_only=True)
class RandAugment:
    """So many operations on each image, drawn with replacement and each done with some chance.

    >>> images = torch.randint(256, (4, 3, 32, 32), dtype=torch.uint8)
    >>> RandAugment(magnitude=9, n=2, std=1)(images, torch.Generator().manual_seed(0)).shape
    torch.Size([4, 3, 32, 32])
    """

    magnitude: Annotated[float, between(0, MOST)] = 9
    """From 0 to 10. In timm's ranges most operations grow with it, but posterize and solarize do more the lower it is, and
    color, contrast, brightness and sharpness do nothing at 5, less than the image has below and more above."""

    n: Count = 2
    """Operations drawn for an image."""

    std: Annotated[float, at_least(0)] = 1
    """The deviation of the magnitude, which is drawn anew for each operation and image and kept within 0 and 10."""

    chance: Annotated[float, between(0, 1)] = 0.5
    """That an operation, once drawn, is done."""

    def __post_init__(self) -> None:
        check_settings(self)

    def __call__(self, images: Tensor, generator: Generator) -> Tensor:
        """Images ``[B, C, H, W]``, grey or RGB, uint8 or floats from 0 to 1, as new ones of that kind."""
        values, device = levels(images), generator.device
        for _ in range(self.n):
            batch = (len(images),)
            kind = torch.randint(len(OPERATIONS), batch, generator=generator, device=device)
            done = torch.rand(batch, generator=generator, device=device) < self.chance
            level = (self.magnitude + self.std * torch.randn(batch, generator=generator, device=device)).clamp(0, MOST) / MOST
            sign = torch.randint(2, batch, generator=generator, device=device) * 2 - 1
            for k, operation in enumerate(OPERATIONS.values()):
                chosen = (done & (kind == k)).nonzero()[:, 0]
                if len(chosen):
                    where = chosen.to(values.device)
                    arguments = (part[chosen].to(values.device)[:, None, None, None] for part in (level, sign))
                    values[where] = operation(values[where], *arguments)
        return values.to(torch.uint8) if images.dtype == torch.uint8 else (values / 255).to(images.dtype)


def rand_augment(images: Tensor, generator: Generator, magnitude: float = 9, n: int = 2, std: float = 1) -> Tensor:
    """Images ``[B, C, H, W]``, uint8 or floats from 0 to 1, after RandAugment with these settings."""
    return RandAugment(magnitude=magnitude, n=n, std=std)(images, generator)


def levels(images: Tensor) -> Tensor:
    """Images as whole numbers from 0 to 255, a new tensor of floats."""
    if not isinstance(images, Tensor) or images.ndim != 4 or images.shape[1] not in (1, 3):
        shape = list(images.shape) if isinstance(images, Tensor) else type(images).__name__
        raise InputError(f"RandAugment takes images [B, C, H, W] with 1 or 3 channels: this is {shape}")
    if images.dtype == torch.uint8:
        return images.to(torch.float32)
    if not images.is_floating_point() or not bool(((images >= 0) & (images <= 1)).all()):
        raise InputError("RandAugment takes uint8 or floats from 0 to 1: augment before images are normalised")
    return (images.detach().to(torch.float32) * 255).round()


def autocontrast(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Each channel stretched to all of its range; one of a single value stays."""
    low, high = x.double().amin((2, 3), keepdim=True), x.double().amax((2, 3), keepdim=True)
    scale = torch.full_like(low, 255) / (high - low).clamp(min=1)  # a number over a tensor is rounded twice
    return torch.where(high > low, (x * scale - low * scale).floor().clamp(0, 255), x.double()).to(x)


def equalize(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Each channel's values spread so that each range of them holds as many pixels."""
    count, pixels = x.shape[0] * x.shape[1], x.shape[2] * x.shape[3]
    flat = x.reshape(count, pixels).long()
    histogram = torch.zeros(count, 256, dtype=torch.long, device=x.device).scatter_add_(1, flat, torch.ones_like(flat))
    last = histogram.gather(1, flat.amax(1, keepdim=True))
    step = (pixels - last) // 255
    before = histogram.cumsum(1) - histogram
    table = ((before + step // 2) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, table.gather(1, flat), flat).to(x.dtype).reshape(x.shape)


def invert(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Dark for light."""
    return 255 - x


def posterize(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """The first 0 to 4 bits: fewer with less magnitude, as in timm."""
    step = torch.exp2(8 - (level * 4).floor())
    return (x / step).floor() * step


def solarize(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Inverted from a value on."""
    return torch.where(x < (level * 256).floor(), x, 255 - x)


def solarize_add(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Up to 110 more where it is darker than mid-grey."""
    return torch.where(x < 128, (x + (level * 110).floor()).clamp(max=255), x)


def color(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """From nearly grey to nearly twice the colour."""
    return _blend(_grey(x), x, level)


def contrast(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Towards the image's mean grey, or away from it."""
    return _blend((_grey(x).mean((2, 3), keepdim=True) + 0.5).floor(), x, level)


def brightness(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Towards black, or away from it."""
    return _blend(torch.zeros_like(x), x, level)


def sharpness(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Towards the smoothed image, or away from it; the outermost pixels stay."""
    if min(x.shape[-2:]) < 3:
        return x
    kernel = torch.ones(1, 1, 3, 3, device=x.device)
    kernel[..., 1, 1] = 5
    smoothed = x.clone()
    inner = functional.conv2d(x.flatten(0, 1)[:, None], kernel)[:, 0].unflatten(0, x.shape[:2])
    smoothed[..., 1:-1, 1:-1] = (inner / 13 + 0.5).floor()
    return _blend(smoothed, x, level)


def rotate(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """By up to 30° either way, about the middle."""
    angle = torch.deg2rad(-30 * level * sign)
    cos, sin, height, width = angle.cos(), angle.sin(), x.shape[-2], x.shape[-1]
    right = width / 2 - cos * width / 2 - sin * height / 2
    return _affine(x, cos, sin, right, -sin, cos, height / 2 + sin * width / 2 - cos * height / 2)


def shear_x(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Rows moved by up to 0.3 of their height in the image."""
    one, none = torch.ones_like(level), torch.zeros_like(level)
    return _affine(x, one, 0.3 * level * sign, none, none, one, none)


def shear_y(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Columns likewise."""
    one, none = torch.ones_like(level), torch.zeros_like(level)
    return _affine(x, one, none, none, 0.3 * level * sign, one, none)


def translate_x(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """To the side by up to 0.45 of the width."""
    one, none = torch.ones_like(level), torch.zeros_like(level)
    return _affine(x, one, none, 0.45 * level * sign * x.shape[-1], none, one, none)


def translate_y(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Up or down by up to 0.45 of the height."""
    one, none = torch.ones_like(level), torch.zeros_like(level)
    return _affine(x, one, none, none, none, one, 0.45 * level * sign * x.shape[-2])


OPERATIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    operation.__name__: operation
    for operation in (
        autocontrast, equalize, invert, rotate, posterize, solarize, solarize_add, color, contrast, brightness, sharpness,
        shear_x, shear_y, translate_x, translate_y,
    )
}  # fmt: skip
"""Each takes images ``[b, C, H, W]`` of whole numbers from 0 to 255, with levels from 0 to 1 and signs ``[b, 1, 1, 1]``."""


def _grey(x: Tensor) -> Tensor:
    """``[b, 1, H, W]``, in Pillow's weights and rounding."""
    if x.shape[1] == 1:
        return x
    red, green, blue = x.long().unbind(1)
    return ((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16)[:, None].to(x.dtype)


def _blend(dull: Tensor, x: Tensor, level: Tensor) -> Tensor:
    """From a tenth of the way between the dull image and this one, to nearly as far beyond it."""
    return (dull + (0.1 + 1.8 * level) * (x - dull)).clamp(0, 255).floor()


def _affine(x: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor) -> Tensor:
    """The image at (a x + b y + c, d x + e y + f) for each pixel's centre (x, y), and grey beyond its edges."""
    height, width = x.shape[-2:]
    across = torch.arange(width, device=x.device) + 0.5
    down = (torch.arange(height, device=x.device) + 0.5)[:, None]
    column, row = (a * across + b * down + c)[:, 0], (d * across + e * down + f)[:, 0]  # [b, H, W]
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    column, row = column - 0.5, row - 0.5
    left, top = column.floor(), row.floor()
    flat, found = x.flatten(2), torch.zeros_like(x)
    for y, share in ((top, 1 - (row - top)), (top + 1, row - top)):
        for z, part in ((left, 1 - (column - left)), (left + 1, column - left)):
            index = (y.clamp(0, height - 1) * width + z.clamp(0, width - 1)).long().flatten(1)
            values = flat.gather(2, index[:, None].expand(-1, x.shape[1], -1)).reshape(x.shape)
            found += values * (share * part)[:, None]
    return torch.where(inside[:, None], found.round().clamp(0, 255), torch.full_like(x, GREY))
