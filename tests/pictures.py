"""Images to corrupt and to augment: smooth, coloured, different, with values from dark to light."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def pictures(count: int = 4, channels: int = 3, height: int = 32, width: int = 32, seed: int = 0) -> Tensor:
    """Coarse random blocks enlarged, with some grain, ``[N, C, H, W]`` as uint8."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, channels, 5, 5, generator=generator)
    smooth = functional.interpolate(coarse, (height, width), mode="bilinear", align_corners=True)
    grain = torch.rand(count, channels, height, width, generator=generator)
    return (255 * (0.9 * smooth + 0.1 * grain)).round().to(torch.uint8)


def values(images: Tensor) -> Tensor:
    """From 0 to 1, as floats."""
    return images.float() / 255
