"""Random smooth colour images to corrupt and to augment."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def pictures(count: int = 4, channels: int = 3, height: int = 32, width: int = 32, seed: int = 0) -> Tensor:
    """Returns enlarged coarse noise with some grain, ``[N, C, H, W]`` as uint8."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, channels, 5, 5, generator=generator)
    smooth = functional.interpolate(coarse, (height, width), mode="bilinear", align_corners=True)
    grain = torch.rand(count, channels, height, width, generator=generator)
    return (255 * (0.9 * smooth + 0.1 * grain)).round().to(torch.uint8)


def values(images: Tensor) -> Tensor:
    """Converts uint8 images to floats from 0 to 1."""
    return images.float() / 255
