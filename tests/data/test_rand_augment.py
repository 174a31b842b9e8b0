"""RandAugment: each operation is Pillow's, images are independent, chances are as said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from pictures import pictures
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from multitudes.data.rand_augment import OPERATIONS, RandAugment
from multitudes.errors import InputError

LEVELS = (0.0, 0.13, 0.5, 0.777, 0.913, 1.0)
BILINEAR = Image.Resampling.BILINEAR


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def affine(image: Image.Image, *matrix: float) -> Image.Image:
    fill = 128 if image.mode == "L" else (128, 128, 128)
    return image.transform(image.size, Image.Transform.AFFINE, matrix, resample=BILINEAR, fillcolor=fill)


def turned(image: Image.Image, degrees: float) -> Image.Image:
    return image.rotate(degrees, resample=BILINEAR, fillcolor=128 if image.mode == "L" else (128, 128, 128))


def lightened(image: Image.Image, more: int) -> Image.Image:
    return image.point([min(255, i + more) if i < 128 else i for i in range(256)] * len(image.getbands()))


def posterized(image: Image.Image, bits: int) -> Image.Image:
    """Newer Pillows refuse no bits at all, which used to be black."""
    return ImageOps.posterize(image, bits) if bits else image.point(lambda value: 0)


PILLOW: dict[str, Callable[[Image.Image, float, int], Image.Image]] = {
    "autocontrast": lambda image, level, sign: ImageOps.autocontrast(image),
    "equalize": lambda image, level, sign: ImageOps.equalize(image),
    "invert": lambda image, level, sign: ImageOps.invert(image),
    "posterize": lambda image, level, sign: posterized(image, int(level * 4)),
    "solarize": lambda image, level, sign: ImageOps.solarize(image, int(level * 256)),
    "solarize_add": lambda image, level, sign: lightened(image, int(level * 110)),
    "color": lambda image, level, sign: ImageEnhance.Color(image).enhance(0.1 + 1.8 * level),
    "contrast": lambda image, level, sign: ImageEnhance.Contrast(image).enhance(0.1 + 1.8 * level),
    "brightness": lambda image, level, sign: ImageEnhance.Brightness(image).enhance(0.1 + 1.8 * level),
    "sharpness": lambda image, level, sign: ImageEnhance.Sharpness(image).enhance(0.1 + 1.8 * level),
    "rotate": lambda image, level, sign: turned(image, 30 * level * sign),
    "shear_x": lambda image, level, sign: affine(image, 1, 0.3 * level * sign, 0, 0, 1, 0),
    "shear_y": lambda image, level, sign: affine(image, 1, 0, 0, 0.3 * level * sign, 1, 0),
    "translate_x": lambda image, level, sign: affine(image, 1, 0, 0.45 * level * sign * image.width, 0, 1, 0),
    "translate_y": lambda image, level, sign: affine(image, 1, 0, 0, 0, 1, 0.45 * level * sign * image.height),
}
"""What timm does to one image at a time."""


def by_pillow(name: str, images: Tensor, level: float, sign: int, operations: dict[str, Any] = PILLOW) -> Tensor:
    found = [operations[name](Image.fromarray(x.permute(1, 2, 0).squeeze(2).numpy()), level, sign) for x in images]
    pixels = np.stack([np.asarray(image) for image in found]).reshape(len(images), *images.shape[-2:], images.shape[1])
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


@pytest.mark.parametrize(("sign", "shape"), [(1, (3, 32, 32)), (-1, (1, 28, 28)), (1, (3, 21, 34)), (-1, (3, 21, 34))])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_are_pillows(name: str, shape: tuple[int, int, int], sign: int) -> None:
    """To the bit at every level; where pixels move, within a level, and some may fall on the other side of the border."""
    images = pictures(3, *shape)
    images[2] = 77  # one of a single value
    moves = name.startswith(("rotate", "shear", "translate"))
    for level in LEVELS:
        given = images.float()
        found = OPERATIONS[name](given, torch.full((3, 1, 1, 1), level), torch.full((3, 1, 1, 1), sign))
        assert torch.equal(given, images.float())
        assert torch.equal(found, found.round())
        off = (found - by_pillow(name, images, level, sign).float()).abs() > (1 if moves else 0)
        assert float(off.float().mean()) <= (0.01 if moves else 0), level


INCREASING: dict[str, Callable[[Image.Image, float, int], Image.Image]] = {
    **PILLOW,
    "posterize": lambda image, level, sign: posterized(image, 4 - int(level * 4)),
    "solarize": lambda image, level, sign: ImageOps.solarize(image, 256 - int(level * 256)),
    "color": lambda image, level, sign: ImageEnhance.Color(image).enhance(1 + 0.9 * sign * level),
    "contrast": lambda image, level, sign: ImageEnhance.Contrast(image).enhance(1 + 0.9 * sign * level),
    "brightness": lambda image, level, sign: ImageEnhance.Brightness(image).enhance(1 + 0.9 * sign * level),
    "sharpness": lambda image, level, sign: ImageEnhance.Sharpness(image).enhance(1 + 0.9 * sign * level),
}
"""What timm's increasing variants do, "inc1"."""


@pytest.mark.parametrize("name", OPERATIONS)
def test_increasing_operations_are_pillows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the operation alone, done for sure, each image is one of the two that the signs give."""
    images = pictures(4, 3, 32, 32)
    monkeypatch.setattr("multitudes.data.rand_augment.OPERATIONS", {name: OPERATIONS[name]})
    moves = name.startswith(("rotate", "shear", "translate"))
    for magnitude in (0, 2.6, 6, 10):
        drawn = RandAugment(magnitude=magnitude, n=1, std=0, chance=1, increasing=True)
        found = drawn(images, rng()).float()
        both = [by_pillow(name, images, magnitude / 10, sign, INCREASING).float() for sign in (1, -1)]
        for index in range(4):
            off = min(float(((found - each)[index].abs() > 1).float().mean()) for each in both)
            assert off <= (0.01 if moves else 0), magnitude


def test_every_operation_of_pillow_is_there() -> None:
    assert sorted(OPERATIONS) == sorted(PILLOW)


@pytest.mark.parametrize("name", OPERATIONS)
def test_images_have_levels_of_their_own(name: str) -> None:
    """Together as one by one."""
    images = pictures(6).float()
    level, sign = torch.linspace(0.1, 1, 6)[:, None, None, None], torch.tensor([1, -1] * 3)[:, None, None, None]
    together = OPERATIONS[name](images, level, sign)
    single = [OPERATIONS[name](images[i : i + 1], level[i : i + 1], sign[i : i + 1]) for i in range(6)]
    assert torch.equal(together, torch.cat(single))


def test_how_often_and_how_strongly() -> None:
    """Black images become what solarize_add adds, or white, or grey in part, or stay: it can be told what was done."""
    images = torch.zeros(30000, 1, 2, 2, dtype=torch.uint8)
    found = RandAugment(magnitude=9, n=1, std=1)(images, rng())
    flat = found.reshape(len(images), -1)
    one = flat.amin(1) == flat.amax(1)
    inverted = (flat == 255).all(1)
    added = flat[one & (flat[:, 0] > 50) & (flat[:, 0] <= 110)][:, 0].double()
    share = 0.5 / len(OPERATIONS)
    assert float(inverted.double().mean()) == pytest.approx(share, rel=0.12)
    assert len(added) / len(images) == pytest.approx(share, rel=0.12)
    expected = np.floor(np.random.default_rng(0).normal(9, 1, 100000).clip(0, 10) * 11)
    assert float(added.mean()) == pytest.approx(expected.mean(), abs=1)
    assert float(added.std()) == pytest.approx(expected.std(), abs=1)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_several_operations_one_after_the_other(n: int) -> None:
    """With every operation done for sure and no deviation, few images stay as they were, and fewer the more there are."""
    images = pictures(300)
    sure = RandAugment(magnitude=9, n=n, std=0, chance=1)
    assert float((sure(images, rng()) == images).flatten(1).all(1).float().mean()) < 0.1
    never = RandAugment(magnitude=9, n=n, std=0, chance=0)
    assert torch.equal(never(images, rng()), images)


def test_half_of_half_stay() -> None:
    """What is drawn is done half of the time, so of two operations neither in a quarter of images."""
    images = pictures(1000)
    kept = (RandAugment()(images, rng()) == images).flatten(1).all(1).float().mean()
    assert float(kept) == pytest.approx(0.25, abs=0.04)


@pytest.mark.parametrize("channels", [1, 3])
def test_floats_are_bytes_divided(channels: int) -> None:
    images = pictures(64, channels)
    whole = RandAugment()(images, rng(1))
    assert whole.dtype == torch.uint8
    assert torch.equal(RandAugment()(images.float() / 255, rng(1)), whole.float() / 255)
    assert RandAugment()((images / 255).double(), rng(1)).dtype == torch.float64


def test_repeated_calls_are_identical_and_nothing_is_written_to() -> None:
    for images in (pictures(32), pictures(32).float() / 255):
        kept = images.clone()
        first = RandAugment()(images, rng(5))
        assert torch.equal(images, kept)
        assert torch.equal(first, RandAugment()(images, rng(5)))
        assert not torch.equal(first, RandAugment()(images, rng(6)))


@pytest.mark.parametrize("shape", [(2, 3, 1, 1), (2, 1, 2, 5), (0, 3, 8, 8)])
def test_tiny_images(shape: tuple[int, int, int, int]) -> None:
    images = torch.full(shape, 90, dtype=torch.uint8)
    assert RandAugment(n=40, chance=1)(images, rng()).shape == images.shape


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"magnitude": 11}, r"RandAugment\(magnitude=11\)"),
        ({"magnitude": True}, "magnitude=True"),
        ({"std": -1}, "std=-1.*at least 0"),
        ({"std": float("inf")}, "std=inf"),
        ({"chance": 1.1}, "chance=1.1"),
        ({"n": 0}, "n=0"),
        ({"n": 1.0}, "n=1.0"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        RandAugment(**settings)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(3, 8, 8), r"\[3, 8, 8\]"),
        (torch.zeros(1, 2, 8, 8), "1 or 3 channels"),
        (torch.full((1, 3, 8, 8), 1.2), "not yet normalised"),
        (torch.full((1, 3, 8, 8), torch.nan), "not yet normalised"),
        (torch.zeros(1, 3, 8, 8, dtype=torch.int32), "uint8 or floats"),
        ([1], "list"),
    ],
)
def test_bad_images_are_refused(images: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        RandAugment()(images, rng())
