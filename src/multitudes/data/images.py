"""Image files read lazily and cropped to one size by Pillow, at the centre or at random; the check of batches of images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from multitudes.data.lazy import Lazy
from multitudes.data.random_crop import RandomCrop
from multitudes.errors import FileError, InputError

ENDINGS = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff"}
NORMAL_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of each channel that ImageNet networks are trained with."""


@dataclass(frozen=True)
class ImageFiles:
    """Reads image files by index: resizes the shorter side (bilinear), then crops the centre, as for testing on ImageNet.

    With `crop`, a random part of each image is resized instead, as for training.
    """

    paths: tuple[Path, ...]
    size: int
    """Side of the square crop, in pixels."""

    resize: int
    """Length of the shorter side before cropping."""

    border: int = 0
    """Pixels removed on every side before resizing."""

    crop: RandomCrop | None = None
    """The random crop, or None for the centre."""

    def __call__(self, index: int, seed: int | None = None) -> Tensor:
        """Returns one image as uint8 ``[3, size, size]``. A random crop follows from `seed` and the index.

        Without a seed, it comes from torch's global generator.
        """
        image = open_image(self.paths[index])
        if self.border:
            image = image.crop((self.border, self.border, image.width - self.border, image.height - self.border))
        return _as_tensor(self._centre(image) if self.crop is None else self._part(image, index, seed))

    def _part(self, image: Any, index: int, seed: int | None) -> Any:
        """Cuts out a random part and resizes it."""
        assert self.crop is not None
        rng = np.random.default_rng([int(torch.randint(2**62, ())) if seed is None else seed, index])
        part = image.crop(self.crop.box(image.width, image.height, rng))
        return part.resize((self.size, self.size), resample=_pillow().Resampling.BILINEAR)

    def _centre(self, image: Any) -> Any:
        """Resizes the shorter side and cuts out the centre."""
        short = min(image.width, image.height)
        if short != self.resize:
            sides = [max(int(self.resize * side / short), self.size) for side in (image.width, image.height)]
            image = image.resize(sides, resample=_pillow().Resampling.BILINEAR)
        left, top = round((image.width - self.size) / 2), round((image.height - self.size) / 2)
        return image.crop((left, top, left + self.size, top + self.size))


def _as_tensor(image: Any) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def image_files(paths: list[Path], size: int, resize: int | None, border: int = 0, crop: RandomCrop | None = None) -> Lazy:
    """Returns image files as lazy inputs of a Data. `resize` is 8/7 of `size` by default, 256 for 224."""
    _pillow()
    if crop is not None and not isinstance(crop, RandomCrop):
        raise InputError(f"crop={crop!r}: give data.RandomCrop(), or leave crop= out for the centre")
    if crop is not None and resize is not None:
        raise InputError(
            f"resize={resize} is for centre crops: leave it out with crop=, whose crops are resized to size={size}"
        )
    resize = size * 8 // 7 if resize is None else resize
    if not 1 <= size <= resize:
        raise InputError(f"size={size} must be from 1 to resize={resize}, because the crop is cut from the resized image")
    read = ImageFiles(tuple(paths), size, resize, border, crop)
    return Lazy(read, torch.arange(len(paths)), (len(paths), 3, size, size), varies=crop is not None)


def open_image(path: Path) -> Any:
    """Opens an image file as an RGB Pillow image."""
    pillow = _pillow()
    try:
        with pillow.open(path) as image:
            return image.convert("RGB")
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
        raise FileError(f"{path} cannot be read as an image: {error}. Replace or remove the file") from error


def list_images(folder: Path) -> list[Path]:
    """Lists the image files in a folder and its subfolders, sorted."""
    return sorted(p for p in folder.rglob("*") if p.suffix.lower() in ENDINGS and p.is_file() and not p.name.startswith("."))


def check_images(images: Any, *, unit: bool = False) -> None:
    """Checks that images are a tensor ``[B, C, H, W]``, uint8 or floats; with `unit` grey or RGB, and floats from 0 to 1."""
    if not isinstance(images, Tensor) or images.ndim != 4:
        shape = list(images.shape) if isinstance(images, Tensor) else type(images).__name__
        raise InputError(f"images must be a tensor [B, C, H, W], not {shape}")
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise InputError(f"images must be uint8 or floats, not {images.dtype}")
    if unit and (images.shape[1] not in (1, 3) or 0 in images.shape[1:]):
        raise InputError(f"images must be [B, C, H, W] with 1 or 3 channels, not {list(images.shape)}")
    if unit and images.is_floating_point() and not bool(((images >= 0) & (images <= 1)).all()):
        raise InputError("images must be uint8, or floats from 0 to 1: pass images that are not yet normalised")


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise FileError("image files need Pillow: pip install 'multitudes[data]'") from error
    return Image
