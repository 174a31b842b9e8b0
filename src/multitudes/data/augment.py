"""Augmentation of whole batches on their device: padded crop, flip, RandAugment, mixup, cutmix, label smoothing.

Zhang, Cisse, Dauphin, Lopez-Paz, "mixup: Beyond Empirical Risk Minimization", ICLR 2018, https://arxiv.org/abs/1710.09412
Yun, Han, Oh, Chun, Choe, Yoo, "CutMix", ICCV 2019, https://arxiv.org/abs/1905.04899

    mixup    λ x_i + (1 − λ) x_j                  with one λ ~ Beta(α, α) per batch, and j a permutation of the batch
    cutmix   x_i with a box of x_j pasted in      the box covers 1 − λ of the image, before it is cut off at the edges

Images are ``[B, C, H, W]``, uint8 or floats. Results have the same dtype; inputs are never modified. All randomness comes from
the generator, on the CPU or on the images' device. A CPU generator gives the same augmentation on every device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import functional

from multitudes.data.images import check_images
from multitudes.data.rand_augment import RandAugment
from multitudes.errors import InputError
from multitudes.settings import Rate, above, at_least, between, check_settings, check_value, explained


class Pair(NamedTuple):
    """Targets of images that are each mixed from two images."""

    first: Tensor
    second: Tensor
    weight: Tensor
    """Weight of the first target, a scalar tensor. The second target has 1 − weight."""

    def soft(self, classes: int | None = None) -> Tensor:
        """Weighted mean of both targets. Labels ``[B]`` become one-hot ``[B, K]`` first; floats are averaged as they are."""
        first, second = (smooth(part, classes, 0.0) for part in (self.first, self.second))
        return self.weight.to(first) * first + (1 - self.weight).to(first) * second


def crop(images: Tensor, generator: Generator, padding: int = 4, fill: Literal["zero", "reflect"] = "zero") -> Tensor:
    """Shifts each image by up to `padding` pixels on each axis; `fill` pads with zeros or with a reflection of the image."""
    check_images(images)
    check_value("padding", padding, Annotated[int, at_least(0)])
    check_value("fill", fill, Literal["zero", "reflect"])
    batch, channels, height, width = images.shape
    if fill == "reflect" and padding >= min(height, width):
        raise InputError(
            f"crop(padding={padding}, fill='reflect'): images are {min(height, width)} pixels wide or high: "
            "give a smaller padding"
        )
    device = images.device
    start = torch.randint(2 * padding + 1, (2, batch, 1), generator=generator, device=generator.device).to(device)
    rows, columns = (start[i] + torch.arange(size, device=device) for i, size in enumerate((height, width)))
    if fill == "zero":
        images = functional.pad(images, (padding,) * 4)
    else:
        rows, columns = (
            (size - 1 - (size - 1 - (at - padding).abs()).abs()) for at, size in ((rows, height), (columns, width))
        )
    each, channel = torch.arange(batch, device=device), torch.arange(channels, device=device)
    return images[each[:, None, None, None], channel[:, None, None], rows[:, None, :, None], columns[:, None, None, :]]


def flip(images: Tensor, generator: Generator) -> Tensor:
    """Mirrors each image with probability 1/2."""
    check_images(images)
    mirrored = torch.rand(len(images), 1, 1, 1, generator=generator, device=generator.device) < 0.5
    return torch.where(mirrored.to(images.device), images.flip(-1), images)


def mixup(images: Tensor, targets: Tensor, alpha: float, generator: Generator) -> tuple[Tensor, Pair]:
    """Blends each image with another image of the batch. Returns the blended images and the targets of both."""
    other, share = _partners(images, targets, alpha, generator)
    whole = images.dtype == torch.uint8
    values = images.to(torch.float32) if whole else images
    mixed = values * share.to(values) + values[other] * (1 - share).to(values)
    return (mixed.round() if whole else mixed).to(images.dtype), Pair(targets, targets[other], share)


def cutmix(images: Tensor, targets: Tensor, alpha: float, generator: Generator) -> tuple[Tensor, Pair]:
    """Pastes into each image a box from another image of the batch, at the same place. Returns images and targets of both."""
    other, share = _partners(images, targets, alpha, generator)
    height, width = images.shape[-2:]
    middle = torch.rand(2, generator=generator, device=generator.device).to(images.device)
    inside = []
    for size, place in zip((height, width), middle, strict=True):
        centre, half = (place * size).floor(), ((1 - share).sqrt() * size).floor().div(2, rounding_mode="floor")
        at = torch.arange(size, device=images.device)
        inside.append((at >= centre - half) & (at < centre + half))
    box = inside[0][:, None] & inside[1]
    share = 1 - box.to(share).mean()
    return torch.where(box, images[other], images), Pair(targets, targets[other], share)


def smooth(targets: Tensor, classes: int | None, smoothing: float = 0.1) -> Tensor:
    """Smooths labels ``[B]`` or soft targets ``[B, K]`` to (1 − s) target + s / K, ``[B, K]``.

    >>> smooth(torch.tensor([1]), 4, 0.1)
    tensor([[0.0250, 0.9250, 0.0250, 0.0250]])
    """
    if not 0 <= smoothing < 1:
        raise InputError(f"smooth(smoothing={smoothing!r}): give a number from 0 to less than 1")
    if not targets.is_floating_point():
        if classes is None or targets.ndim != 1:
            raise InputError(
                "mixing or smoothing needs labels [B] and their number of classes, such as classes=10, "
                f"but labels are {list(targets.shape)} and classes={classes}"
            )
        targets = _one_hot(targets, classes)
    if not smoothing:
        return targets
    if targets.ndim != 2 or classes not in (None, targets.shape[1]):
        raise InputError(
            f"smoothing needs labels [B] or soft targets [B, {'K' if classes is None else classes}], not {list(targets.shape)}"
        )
    return targets * (1 - smoothing) + smoothing / targets.shape[1]


@explained
@dataclass(frozen=True, kw_only=True)
class Augment:
    """Augments a training batch by crop, flip, RandAugment, mixup or cutmix, and label smoothing, in this order.

    Settings are plain values: ``Augment(**json.loads(json.dumps(augment.settings())))`` equals `augment`.

    >>> medium = Augment(mixup=0.5, cutmix=0.2, rand_augment=RandAugment(magnitude=9, n=2, std=1), smoothing=0.1, classes=100)
    >>> images, targets = torch.zeros(8, 3, 32, 32, dtype=torch.uint8), torch.arange(8)
    >>> images, targets = medium(images, targets, torch.Generator().manual_seed(0))
    >>> targets.shape
    torch.Size([8, 100])
    """

    crop: Annotated[int, at_least(0)] = 4
    """Largest shift in pixels; 0 for none."""

    fill: Literal["zero", "reflect"] = "zero"
    """Padding of shifted images: zeros (black, or the mean if images are normalised) or a reflection of the image."""

    flip: bool = True
    """Whether each image is mirrored with probability 1/2."""

    mixup: Annotated[float, at_least(0)] = 0.0
    """α of mixup; 0 for none."""

    cutmix: Annotated[float, at_least(0)] = 0.0
    """α of cutmix; 0 for none."""

    switch: Annotated[float, between(0, 1)] = 0.5
    """Probability of cutmix rather than mixup for a batch, if both are on."""

    rand_augment: RandAugment | None = None
    """Settings of RandAugment, or None. It needs uint8 images, or floats from 0 to 1 that are not yet normalised."""

    smoothing: Rate = 0.0
    """Label smoothing s."""

    classes: Annotated[int, at_least(2)] | None = None
    """Number of classes, needed to mix or smooth integer labels."""

    def __post_init__(self) -> None:
        if isinstance(self.rand_augment, Mapping):
            object.__setattr__(self, "rand_augment", RandAugment(**self.rand_augment))
        check_settings(self)

    def settings(self) -> dict[str, Any]:
        """Returns all settings as plain values, for JSON."""
        return asdict(self)

    def __call__(self, images: Tensor, targets: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """Augments images ``[B, C, H, W]`` and targets ``[B]`` or ``[B, K]``. Mixing and smoothing return ``[B, K]``."""
        check_images(images)
        if not isinstance(generator, Generator):
            raise InputError(f"generator= is a {type(generator).__name__}: give torch.Generator().manual_seed(0)")
        if targets.ndim not in (1, 2) or len(targets) != len(images):
            raise InputError(f"targets= must be [B] or [B, K] for {len(images)} images, not {list(targets.shape)}")
        if self.crop:
            images = crop(images, generator, self.crop, self.fill)
        if self.flip:
            images = flip(images, generator)
        if self.rand_augment is not None:
            images = self.rand_augment(images, generator)
        if self.mixup or self.cutmix:
            images, pair = self._mix(images, targets, generator)
            targets = pair.soft(self.classes)
        return images, smooth(targets, self.classes, self.smoothing) if self.smoothing else targets

    def _mix(self, images: Tensor, targets: Tensor, generator: Generator) -> tuple[Tensor, Pair]:
        """Applies mixup or cutmix, one of them at random if both are on."""
        cut = bool(self.cutmix)
        if self.mixup and self.cutmix:
            cut = bool(torch.rand((), generator=generator, device=generator.device) < self.switch)
        return cutmix(images, targets, self.cutmix, generator) if cut else mixup(images, targets, self.mixup, generator)


def _partners(images: Tensor, targets: Tensor, alpha: float, generator: Generator) -> tuple[Tensor, Tensor]:
    """Draws the partner of each image, ``[B]``, and the weight λ of the image itself; both on the images' device."""
    check_images(images)
    check_value("alpha", alpha, Annotated[float, above(0)])
    if len(targets) != len(images):
        raise InputError(f"there are {len(images)} images but {len(targets)} targets: give one target per image")
    device = generator.device
    share = torch._sample_dirichlet(torch.full((2,), float(alpha), device=device), generator=generator)[0]
    other = torch.randperm(len(images), generator=generator, device=device)
    return other.to(images.device), share.to(images.device)


def _one_hot(targets: Tensor, classes: int) -> Tensor:
    """One-hot labels ``[B, K]``. A label out of range is an error on the CPU, and NaN on a GPU to avoid a synchronisation."""
    wrong = (targets < 0) | (targets >= classes)
    if targets.device.type == "cpu" and bool(wrong.any()):
        raise InputError(
            f"labels range from {int(targets.min())} to {int(targets.max())}, "
            f"but classes={classes} allows only 0 to {classes - 1}"
        )
    one_hot = (targets[:, None] == torch.arange(classes, device=targets.device)).float()
    return one_hot.masked_fill(wrong[:, None], torch.nan)
