"""Image files, read when they are asked for and brought to one size; Pillow opens them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from multitudes.data.lazy import Lazy
from multitudes.errors import FileError, InputError

ENDINGS = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff"}
NORMAL_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation that networks for ImageNet are trained with, channel by channel."""


@dataclass(frozen=True)
class ImageFiles:
    """Files by number: the shorter side resized (bilinear), then the centre cut out, as ImageNet is tested."""

    paths: tuple[Path, ...]
    size: int
    """The side of the square that is cut out."""

    resize: int
    """What the shorter side is brought to first."""

    border: int = 0
    """Pixels around the image that are cut off before."""

    def __call__(self, number: int) -> Tensor:
        """``[3, size, size]`` bytes."""
        image = opened(self.paths[number])
        if self.border:
            image = image.crop((self.border, self.border, image.width - self.border, image.height - self.border))
        short = min(image.width, image.height)
        if short != self.resize:
            sides = [max(int(self.resize * side / short), self.size) for side in (image.width, image.height)]
            image = image.resize(sides, resample=_pillow().Resampling.BILINEAR)
        left, top = round((image.width - self.size) / 2), round((image.height - self.size) / 2)
        image = image.crop((left, top, left + self.size, top + self.size))
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def image_files(paths: list[Path], size: int, resize: int | None, border: int = 0) -> Lazy:
    """These files as the inputs of a Data; `resize` is 8/7 of `size` unless it is given (256 for 224)."""
    _pillow()
    resize = size * 8 // 7 if resize is None else resize
    if not 1 <= size <= resize:
        raise InputError(f"size={size}, resize={resize}: the square cut out cannot be larger than the shorter side")
    read = ImageFiles(tuple(paths), size, resize, border)
    return Lazy(read, torch.arange(len(paths)), (len(paths), 3, size, size))


def opened(path: Path) -> Any:
    """An image in three colours."""
    pillow = _pillow()
    try:
        with pillow.open(path) as image:
            return image.convert("RGB")
    except FileNotFoundError as error:
        raise FileError(f"there is no file {path} any more") from error
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
        raise FileError(f"{path} is not a whole image: {error}") from error


def listed(folder: Path) -> list[Path]:
    """The images in a folder and below, in order."""
    return sorted(p for p in folder.rglob("*") if p.suffix.lower() in ENDINGS and p.is_file() and not p.name.startswith("."))


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise FileError("image files are read by Pillow: pip install 'multitudes[data]'") from error
    return Image
