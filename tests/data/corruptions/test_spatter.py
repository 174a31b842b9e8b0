"""Spatter: where there is liquid, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest
from pictures import pictures, values
from scipy import ndimage

from multitudes.data.corruptions import spatter
from multitudes.data.corruptions.grids import Array
from multitudes.data.corruptions.published import CIFAR, IMAGENET


def x(count: int = 4, channels: int = 3, height: int = 32, width: int = 32) -> Array:
    return values(pictures(count, channels, height, width)).numpy()


def rngs(count: int = 4) -> list[np.random.Generator]:
    return [np.random.default_rng(7 + i) for i in range(count)]


def liquid(numbers: tuple[float, ...], height: int = 32, width: int = 32) -> Array:
    """From the same draws, by scipy."""
    mean, spread, sigma = numbers[:3]
    noise = np.stack([mean + spread * rng.standard_normal((1, height, width), dtype=np.float32) for rng in rngs()])
    return ndimage.gaussian_filter(noise, (0, 0, sigma, sigma), mode="nearest")


@pytest.mark.parametrize("severity", [1, 2, 3])
@pytest.mark.parametrize("table", [CIFAR, IMAGENET])
def test_water_only_lightens_and_only_where_it_is(table: dict[str, tuple[tuple[float, ...], ...]], severity: int) -> None:
    """At its lightest it is `strength` times pale turquoise."""
    numbers = table["spatter"][severity - 1]
    added = spatter.spatter(x(), rngs(), *numbers) - x()
    wet = np.broadcast_to(liquid(numbers) >= numbers[3] + 1e-5, added.shape)
    dry = np.broadcast_to(liquid(numbers) < numbers[3] - 1e-5, added.shape)
    assert (added[dry] == 0).all()
    assert (added >= -1e-6).all()
    assert (added[wet] > 0).mean() > 0.2
    np.testing.assert_allclose(added.max((2, 3)), np.tile(numbers[4] * np.array(spatter.WATER), (4, 1)), atol=1e-5)


@pytest.mark.parametrize("severity", [4, 5])
@pytest.mark.parametrize("channels", [1, 3])
def test_mud_covers(severity: int, channels: int) -> None:
    numbers = CIFAR["spatter"][severity - 1]
    wet, sigma = (liquid(numbers) > numbers[3]).astype(np.float32), numbers[4]
    cover = ndimage.gaussian_filter(wet, (0, 0, sigma, sigma), mode="nearest")
    cover[cover < 0.8] = 0
    assert 0.01 < (cover > 0).mean() < 0.5
    mud = np.array(spatter.MUD) if channels == 3 else np.array([0.299, 0.587, 0.114]) @ np.array(spatter.MUD).reshape(3, 1)
    expected = x(channels=channels) * (1 - cover) + cover * mud.reshape(-1, 1, 1)
    np.testing.assert_allclose(spatter.spatter(x(channels=channels), rngs(), *numbers), expected, atol=1e-5)


@pytest.mark.parametrize(("height", "width"), [(32, 32), (9, 70), (1, 3)])
def test_distance_is_scipys_up_to_where_it_ends(height: int, width: int) -> None:
    wet = np.random.default_rng(0).random((3, 1, height, width)) < 0.9
    wet[1], wet[2] = True, np.arange(width) > width // 2
    found = spatter.rim_distance(wet)
    for mask, result in zip(wet[:, 0], found[:, 0], strict=True):
        inner = ndimage.binary_erosion(mask, border_value=1)
        rim = mask & ~inner
        expected = ndimage.distance_transform_edt(~rim) if rim.any() else np.full(mask.shape, np.inf)
        np.testing.assert_allclose(result, np.minimum(expected, spatter.FAR), atol=1e-5)


def test_a_flat_histogram_is_reached() -> None:
    """As many pixels below each value as its share of 255; an image of one value stays as it is."""
    level = np.random.default_rng(0).poisson(3, (2, 1, 40, 40)).astype(np.float32)
    level[1] = 7
    found = spatter.equalise(level)
    lowest = (level[0] == level[0].min()).sum()
    for value in np.unique(level[0]):
        expected = 255 * ((level[0] <= value).sum() - lowest) / (1600 - lowest)
        assert (found[0][level[0] == value] == np.rint(expected)).all()
    assert found[0].min() == 0
    assert found[0].max() == 255
    assert (found[1] == 7).all()


def test_relief_step_by_step() -> None:
    """Distance from the rim, smoothed, equalise, lit and smoothed again, by scipy."""
    wet = ndimage.gaussian_filter(np.random.default_rng(0).random((2, 1, 32, 32)), (0, 0, 3, 3)) > 0.5
    found = spatter.relief(wet)
    mean = np.ones((1, 1, 3, 3)) / 9
    level = np.floor(ndimage.correlate(spatter.rim_distance(wet).astype(np.float64), mean, mode="mirror") + 1e-4)
    kernel = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])[None, None]
    lit = ndimage.correlate(spatter.equalise(level).astype(np.float64), kernel, mode="mirror").clip(0, 255)
    np.testing.assert_allclose(found, np.rint(ndimage.correlate(lit, mean, mode="mirror")), atol=1)
    assert found.std() > 20


def test_no_drop_at_all_leaves_the_image() -> None:
    assert (spatter.spatter(x(), rngs(), 0.0, 0.01, 1, 0.7, 0.5, 0) == x()).all()
