"""RandomCrop: the random resized crop with which networks are trained on ImageNet.

Szegedy et al., "Going deeper with convolutions", CVPR 2015, https://arxiv.org/abs/1409.4842

A crop has a share of the image's area, uniform in `scale`, and a ratio of width to height whose logarithm is uniform in that
of `ratio`. Its sides are rounded to pixels and its place is uniform. If none of ten such crops fits, it is the largest part of
the image, around its centre, whose ratio is within `ratio`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from multitudes.settings import above, as_tuple, check_rules, check_settings, explained

Positive = Annotated[float, above(0)]
TRIES = 10


@explained
@dataclass(frozen=True, kw_only=True)
class RandomCrop:
    """A random part of an image, which is then resized: ``data.folder(path, crop=RandomCrop())``."""

    scale: tuple[Positive, ...] = (0.08, 1.0)
    """The smallest and the largest share of the image's area."""

    ratio: tuple[Positive, ...] = (3 / 4, 4 / 3)
    """The smallest and the largest ratio of width to height."""

    def __post_init__(self) -> None:
        for name in ("scale", "ratio"):
            as_tuple(self, name)
        check_settings(self)
        pairs = {name: len(pair) == 2 and pair[0] <= pair[1] for name, pair in (("scale", self.scale), ("ratio", self.ratio))}
        check_rules(
            self,
            *((not ordered, name, f"{name} must be two numbers, the smaller first") for name, ordered in pairs.items()),
            (max(self.scale, default=0) > 1, "scale", "scale must be at most 1, the whole image"),
        )

    def box(self, width: int, height: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
        """Draws a crop of an image: left, top, right and bottom, in pixels."""
        (least, most), (first, last) = self.scale, np.log(self.ratio)
        for _ in range(TRIES):
            area, ratio = width * height * rng.uniform(least, most), math.exp(rng.uniform(first, last))
            wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < wide <= width and 0 < high <= height:
                left, top = int(rng.integers(width - wide + 1)), int(rng.integers(height - high + 1))
                return left, top, left + wide, top + high
        wide = min(width, max(1, round(height * self.ratio[1])))
        high = min(height, max(1, round(width / self.ratio[0])))
        left, top = (width - wide) // 2, (height - high) // 2
        return left, top, left + wide, top + high
