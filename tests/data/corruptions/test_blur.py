"""Blur against slow loops over pixels and against scipy."""

from __future__ import annotations

import numpy as np
import pytest
from pictures import pictures, values
from scipy import ndimage

from multitudes.data.corruptions import blur
from multitudes.data.corruptions.grids import Array


def x(count: int = 2, channels: int = 3, height: int = 32, width: int = 32) -> Array:
    return values(pictures(count, channels, height, width)).numpy()


def rngs(count: int = 2) -> list[np.random.Generator]:
    return [np.random.default_rng(7 + i) for i in range(count)]


def test_a_disc_of_one_pixel_is_its_soft_rim() -> None:
    """CIFAR's first severity: nothing but a Gaussian of three taps."""
    side = np.exp(-0.5 / 0.4**2)
    taps = np.array([side, 1, side]) / (1 + 2 * side)
    np.testing.assert_allclose(blur.disc(0.3, 0.4), np.outer(taps, taps), atol=1e-7)


@pytest.mark.parametrize("radius", [3, 6, 8, 10])
def test_a_disc_is_round(radius: float) -> None:
    kernel = blur.disc(radius, 0.1)
    side = 2 * radius + 1
    assert kernel.shape == (side, side)
    expected = [[(i - radius) ** 2 + (j - radius) ** 2 <= radius**2 for j in range(side)] for i in range(side)]
    assert ((kernel > 0.5 * kernel.max()) == np.array(expected)).all()
    assert kernel.sum() == pytest.approx(1, abs=1e-3)


def test_a_large_disc_is_softened_by_five_taps() -> None:
    square = np.arange(-10, 11) ** 2
    hard = (square[:, None] + square <= 100) / (square[:, None] + square <= 100).sum()
    taps = np.exp(-2 * np.arange(-2, 3) ** 2)
    soft = ndimage.correlate(hard, np.outer(taps, taps) / taps.sum() ** 2, mode="mirror")
    np.testing.assert_allclose(blur.disc(10, 0.5), soft, atol=1e-8)


@pytest.mark.parametrize(("radius", "soft"), [(0.4, 0.5), (1.5, 0.1), (4, 0.5), (10, 0.5)])
def test_defocus_is_correlation_with_the_disc(radius: float, soft: float) -> None:
    expected = ndimage.correlate(x(), blur.disc(radius, soft)[None, None], mode="mirror")
    np.testing.assert_allclose(blur.defocus_blur(x(), rngs(), radius, soft), expected, atol=1e-5)


@pytest.mark.parametrize(("sigma", "far", "times"), [(0.4, 1, 2), (0.9, 2, 1), (1.0, 3, 3)])
@pytest.mark.parametrize("channels", [1, 3])
def test_glass_by_a_loop_over_pixels(sigma: float, far: int, times: int, channels: int) -> None:
    """One pixel after the other, the last first, takes the value of a neighbour as it then is."""
    height, width = 17, 21
    found = blur.glass_blur(x(2, channels, height, width), rngs(), sigma, far, times)
    for image, rng, result in zip(x(2, channels, height, width), rngs(), found, strict=True):
        slow = ndimage.gaussian_filter(image, (0, sigma, sigma), mode="nearest")
        moves = iter(rng.integers(-far, far, (times, (height - 2 * far) * (width - 2 * far), 2)).reshape(-1, 2))
        for _ in range(times):
            for h in range(height - far, far, -1):
                for w in range(width - far, far, -1):
                    down, right = next(moves)
                    slow[:, h, w] = slow[:, h + down, w + right]
        assert next(moves, None) is None
        np.testing.assert_allclose(result, ndimage.gaussian_filter(slow, (0, sigma, sigma), mode="nearest"), atol=1e-5)


def test_glass_moves_no_pixel_farther_than_its_reach_in_one_pass() -> None:
    """Before it: `reach` pixels; after it one less. Values tell where they come from."""
    place = np.arange(20 * 20, dtype=np.float32).reshape(1, 1, 20, 20)
    came = np.rint(blur.glass_blur(place, rngs(1), 0.05, 1, 1)[0, 0]).astype(int)
    down, right = came // 20 - np.arange(20)[:, None], came % 20 - np.arange(20)
    assert sorted(np.unique(down)) == [-1, 0]
    assert sorted(np.unique(right)) == [-1, 0]
    assert (came[:2] == place[0, 0, :2]).all()
    assert (came[:, :2] == place[0, 0, :, :2]).all()


@pytest.mark.parametrize(("radius", "sigma"), [(6, 1.0), (9, 2.5), (15, 12)])
def test_motion_by_a_loop_over_steps(radius: float, sigma: float) -> None:
    """2 radius + 1 pixels along the angle, weighted by half a Gaussian."""
    found = blur.motion_blur(x(), rngs(), radius, sigma)
    for image, rng, result in zip(x(), rngs(), found, strict=True):
        angle = np.deg2rad(rng.uniform(-45, 45))
        total, slow = 0.0, np.zeros_like(image)
        for step in range(2 * int(radius) + 1):
            weight = np.exp(-(step**2) / (2 * sigma**2))
            down, right = round(step * np.sin(angle)), round(step * np.cos(angle))
            rows = np.clip(np.arange(32) + down, 0, 31)
            columns = np.clip(np.arange(32) + right, 0, 31)
            slow += weight * image[:, rows][:, :, columns]
            total += weight
        np.testing.assert_allclose(result, slow / total, atol=1e-5)


def test_a_trail_leads_along_its_angle() -> None:
    """A point leaves it on one side only; at 90° it is vertical."""
    dot = np.zeros((2, 1, 15, 15), dtype=np.float32)
    dot[:, 0, 7, 7] = 1
    across, upright = blur.trail(dot, np.array([[0.0], [90.0]]), 2, 1.5)
    assert (np.argwhere(across[0] > 0) == [[7, column] for column in (3, 4, 5, 6, 7)]).all()
    assert (upright[0] == across[0].T).all()
    assert across.sum() == pytest.approx(1)


@pytest.mark.parametrize(("stop", "step"), [(1.06, 0.01), (1.26, 0.01), (1.31, 0.03)])
@pytest.mark.parametrize("size", [32, 45])
def test_zoom_is_the_mean_of_enlarged_images(stop: float, step: float, size: int) -> None:
    image = x(1, 1, size, size)[0, 0].astype(np.float64)
    parts = [image]
    for factor in np.arange(1, stop, step):
        inner = int(np.ceil(size / factor))
        first = (size - inner) // 2
        large = ndimage.zoom(image[first : first + inner, first : first + inner], factor, order=1)
        cut = (len(large) - size) // 2
        parts.append(large[cut : cut + size, cut : cut + size])
    found = blur.zoom_blur(x(1, 1, size, size), rngs(1), stop, step)[0, 0]
    np.testing.assert_allclose(found, np.mean(parts, axis=0), atol=1e-5)


def test_gaussian_blur_is_scipys() -> None:
    expected = ndimage.gaussian_filter(x(), (0, 0, 0.8, 0.8), mode="nearest")
    np.testing.assert_allclose(blur.gaussian_blur(x(), rngs(), 0.8), expected, atol=1e-5)
