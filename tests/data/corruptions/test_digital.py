"""Colours against colorsys, files and boxes against Pillow, elastic images against scipy."""

from __future__ import annotations

import colorsys
import io

import numpy as np
import pytest
import torch
from pictures import pictures, values
from PIL import Image
from scipy import ndimage

from multitudes.data.corruptions import digital
from multitudes.data.corruptions.corrupt import corrupt
from multitudes.data.corruptions.grids import Array
from multitudes.data.corruptions.published import CIFAR, IMAGENET

NONE: list[np.random.Generator] = []


def x(count: int = 2, channels: int = 3, height: int = 32, width: int = 32) -> Array:
    return values(pictures(count, channels, height, width)).numpy()


def colours() -> Array:
    """Every combination of six values in each channel, black, white and greys among them, ``[1, 3, 6, 36]``."""
    steps = np.linspace(0, 1, 6, dtype=np.float32)
    return np.stack(np.meshgrid(steps, steps, steps, indexing="ij")).reshape(1, 3, 6, 36)


def by_hsv(image: Array, change) -> Array:  # type: ignore[no-untyped-def]
    """Pixel by pixel through HSV."""
    found = np.empty_like(image)
    for i, j in np.ndindex(*image.shape[-2:]):
        found[0, :, i, j] = colorsys.hsv_to_rgb(*change(*colorsys.rgb_to_hsv(*image[0, :, i, j].tolist())))
    return found


@pytest.mark.parametrize("more", [0.05, 0.5])
def test_brightness_raises_the_value_of_hsv(more: float) -> None:
    expected = by_hsv(colours(), lambda h, s, v: (h, s, min(v + more, 1)))
    np.testing.assert_allclose(digital.brightness(colours(), NONE, more), expected, atol=1e-6)


@pytest.mark.parametrize(("factor", "more"), [*CIFAR["saturate"], *IMAGENET["saturate"]])
def test_saturate_changes_the_saturation_of_hsv(factor: float, more: float) -> None:
    expected = by_hsv(colours(), lambda h, s, v: (h, min(max(s * factor + more, 0), 1), v))
    np.testing.assert_allclose(digital.saturate(colours(), NONE, factor, more), expected, atol=1e-6)


def test_a_grey_image_has_no_saturation_to_change() -> None:
    """It stays, or darkens as the red would that it becomes."""
    single = x(channels=1)
    np.testing.assert_allclose(digital.saturate(single, NONE, 0.1, 0), single, atol=1e-6)
    np.testing.assert_allclose(digital.saturate(single, NONE, 2, 0.1), single * (1 - 0.701 * 0.1), atol=1e-6)


@pytest.mark.parametrize("channels", [1, 3])
def test_contrast_keeps_the_mean_of_each_channel(channels: int) -> None:
    found, image = digital.contrast(x(channels=channels), NONE, 0.3), x(channels=channels)
    np.testing.assert_allclose(found.mean((2, 3)), image.mean((2, 3)), atol=1e-6)
    np.testing.assert_allclose(found.std((2, 3)), 0.3 * image.std((2, 3)), rtol=1e-4)


def test_tones_and_greys_are_alike() -> None:
    """A colour's grey is that of an image full of it."""
    image = np.broadcast_to(digital.tone(x(), (0.2, 0.9, 0.4)), (1, 3, 4, 4))
    np.testing.assert_allclose(digital.grey(image), digital.tone(x(channels=1), (0.2, 0.9, 0.4))[None] * np.ones((1, 1, 4, 4)))


@pytest.mark.parametrize("severity", [1, 3, 5])
@pytest.mark.parametrize(("channels", "height", "width"), [(1, 32, 32), (3, 33, 20), (3, 80, 70), (1, 3, 2)])
def test_pixelate_is_pillows(channels: int, height: int, width: int, severity: int) -> None:
    """Within one level of 255: Pillow rounds in between."""
    images = pictures(2, channels, height, width)
    share = (CIFAR if width <= 64 else IMAGENET)["pixelate"][severity - 1][0]
    found = corrupt(images, "pixelate", severity)
    for image, result in zip(images, found, strict=True):
        pixels = Image.fromarray(image.permute(1, 2, 0).squeeze(2).numpy())
        small = pixels.resize((max(1, int(width * share)), max(1, int(height * share))), Image.Resampling.BOX)
        expected = np.asarray(small.resize((width, height), Image.Resampling.BOX)).reshape(height, width, channels)
        assert abs(result.permute(1, 2, 0).numpy().astype(int) - expected).max() <= 1


@pytest.mark.parametrize("severity", [1, 5])
@pytest.mark.parametrize(("channels", "height", "width"), [(3, 32, 32), (1, 33, 20), (3, 70, 81)])
def test_jpeg_is_pillows(channels: int, height: int, width: int, severity: int) -> None:
    images = pictures(2, channels, height, width)
    quality = (CIFAR if width <= 64 else IMAGENET)["jpeg_compression"][severity - 1][0]
    found = corrupt(images, "jpeg_compression", severity)
    for image, result in zip(images, found, strict=True):
        file = io.BytesIO()
        Image.fromarray(image.permute(1, 2, 0).squeeze(2).numpy()).save(file, format="JPEG", quality=int(quality))
        expected = np.array(Image.open(file)).reshape(height, width, channels)
        assert (result.permute(1, 2, 0).numpy() == expected).all()
    assert not torch.equal(found, images)


@pytest.mark.parametrize("numbers", [*CIFAR["elastic_transform"], IMAGENET["elastic_transform"][1]])
@pytest.mark.parametrize(("height", "width"), [(32, 32), (24, 39)])
def test_elastic_by_scipy(numbers: tuple[float, float, float], height: int, width: int) -> None:
    """From the same draws: the affine map that takes corners to where they move, then a smooth field of moves."""
    strength, smoothness, slant = numbers
    side = min(height, width)
    rng = np.random.default_rng(3)
    found = digital.elastic_transform(x(1, 3, height, width), [np.random.default_rng(3)], *numbers)[0]
    half, middle = side // 3, np.array([width // 2, height // 2])
    corners = np.array([middle + half, [middle[0] + half, middle[1] - half], middle - half], dtype=np.float64)
    moved = corners + rng.uniform(-side * slant, side * slant, (3, 2))
    forward = np.linalg.lstsq(np.c_[corners, np.ones(3)], moved, rcond=None)[0]  # [3, 2]: (x, y, 1) to (x, y)
    fields = [rng.uniform(-1, 1, (height, width)) for _ in range(2)]
    right, down = (
        ndimage.gaussian_filter(field, side * smoothness, mode="reflect", truncate=3) * side * strength for field in fields
    )
    rows, columns = np.mgrid[:height, :width]
    matrix = np.linalg.inv(forward[:2].T[::-1, ::-1])  # in rows and columns, from the new place to the old
    for channel, result in zip(x(1, 3, height, width)[0], found, strict=True):
        slanted = ndimage.affine_transform(channel, matrix, -matrix @ forward[2][::-1], order=1, mode="mirror")
        expected = ndimage.map_coordinates(slanted, [rows + down, columns + right], order=1, mode="reflect")
        np.testing.assert_allclose(result, expected, atol=2e-4)
