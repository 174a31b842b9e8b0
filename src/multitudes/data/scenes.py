"""Scenes: generated images of shapes with a label per pixel, small enough to train segmentation on a CPU."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from multitudes.data.dataset import Data
from multitudes.data.generated import SPLITS, check_examples, generator
from multitudes.data.sources import check_split
from multitudes.errors import InputError

IGNORE = 255
"""Label of pixels on the border of two regions."""

MOST = 5
"""Largest number of shapes in an image."""

Shape = Callable[[Tensor, Tensor], Tensor]
"""Mask of the points (u, v), in units of the radius, that lie inside the shape."""

SHAPES: dict[str, Shape] = {
    "disc": lambda u, v: u.square() + v.square() < 1,
    "square": lambda u, v: torch.maximum(u.abs(), v.abs()) < 0.85,
    "triangle": lambda u, v: (v < 0.6) & (v > 1.8 * u.abs() - 1.1),
    "ring": lambda u, v: (u.square() + v.square() < 1) & (u.square() + v.square() > 0.3),
}


def scenes(split: str = "train", *, examples: int | None = None, size: int = 48, seed: int = 0) -> Data:
    """Segmentation of discs, squares, triangles and rings: images ``[N, 3, size, size]``, labels ``[N, size, size]``.

    Shapes are rotated, overlap, and have any colour on a shaded ground. One pixel on either side of a border has the label 255,
    which losses and scores leave out. By default "train" has 400 examples, "validation" and "test" 100 each. Images are
    normalised to about mean 0 and deviation 1.

    >>> scenes(examples=2)
    Data(scenes train: 2 × [3, 48, 48] uint8, 5 classes)
    """
    rng = generator(seed, check_split("scenes", split, SPLITS))
    count = check_examples("scenes", (400 if split == "train" else 100) if examples is None else examples)
    if size < 16:
        raise InputError(f"scenes: size={size}: give at least 16 pixels, so that shapes are recognisable")
    images, labels = _draw_scenes(count, size, rng)
    labels = _ignore_borders(labels)
    return Data(images, labels, f"scenes {split}", ("ground", *SHAPES), (0.48,) * 3, (0.19,) * 3, ignore=IGNORE)


def _draw_scenes(count: int, size: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draws images, uint8 ``[N, 3, H, W]``, and the class of each pixel, ``[N, H, W]``: 2 to 5 shapes, the last on top."""
    across = torch.linspace(-1, 1, size)
    y, x = torch.meshgrid(across, across, indexing="ij")
    angle = 2 * math.pi * torch.rand(count, 1, 1, generator=rng)
    slope = ((x * angle.cos() + y * angle.sin() + 1.5) / 3).unsqueeze(1)  # from 0 to 1 across the image
    images = _colours(count, rng) * slope + _colours(count, rng) * (1 - slope)
    labels = torch.zeros(count, size, size, dtype=torch.long)
    shapes = torch.randint(2, MOST + 1, (count, 1, 1), generator=rng)
    for number in range(MOST):
        kinds, inside = _draw_shapes(x, y, count, rng)
        inside &= number < shapes
        images = torch.where(inside.unsqueeze(1), _colours(count, rng) * (0.85 + 0.15 * x), images)
        labels = torch.where(inside, kinds + 1, labels)
    images = images + 0.04 * torch.randn(images.shape, generator=rng)
    return (images.clamp(0, 1) * 255).round().to(torch.uint8), labels


def _draw_shapes(x: Tensor, y: Tensor, count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draws one shape per image. Returns the shape's index in `SHAPES` ``[N, 1, 1]`` and its mask ``[N, H, W]``."""
    kinds = torch.randint(len(SHAPES), (count, 1, 1), generator=rng)
    left, top, radius, turn = torch.rand(4, count, 1, 1, generator=rng)
    radius, turn = 0.25 + 0.3 * radius, 2 * math.pi * turn
    u, v = (x - 1.6 * left + 0.8) / radius, (y - 1.6 * top + 0.8) / radius
    u, v = turn.cos() * u - turn.sin() * v, turn.sin() * u + turn.cos() * v
    return kinds, torch.stack([(kinds == number) & shape(u, v) for number, shape in enumerate(SHAPES.values())]).any(0)


def _colours(count: int, rng: torch.Generator) -> Tensor:
    return torch.rand(count, 3, 1, 1, generator=rng) * 0.8 + 0.1


def _ignore_borders(labels: Tensor) -> Tensor:
    """Sets the label of each pixel with a neighbour (left, right, above, below) of another class to 255."""
    padded = F.pad(labels.float().unsqueeze(1), (1, 1, 1, 1), mode="replicate").squeeze(1)
    middle = padded[:, 1:-1, 1:-1]
    around = (padded[:, :-2, 1:-1], padded[:, 2:, 1:-1], padded[:, 1:-1, :-2], padded[:, 1:-1, 2:])
    differs = torch.stack([side != middle for side in around]).any(0)
    return torch.where(differs, IGNORE, labels)
