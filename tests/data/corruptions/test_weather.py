"""Snow, frost and fog: formulas, and a plasma point by point."""

from __future__ import annotations

import numpy as np
import pytest
from pictures import pictures, values
from scipy import ndimage

from multitudes.data.corruptions import weather
from multitudes.data.corruptions.blur import trail
from multitudes.data.corruptions.grids import Array


def x(count: int = 2, channels: int = 3, height: int = 32, width: int = 32) -> Array:
    return values(pictures(count, channels, height, width)).numpy()


def rngs(count: int = 2) -> list[np.random.Generator]:
    return [np.random.default_rng(7 + i) for i in range(count)]


def slow_plasma(rng: np.random.Generator, side: int, decay: float) -> Array:
    """Diamonds and squares, one point at a time."""
    field, step, reach = np.zeros((side, side)), side, 1.0
    while step >= 2:
        half, cells = step // 2, side // step
        noise = [rng.uniform(-reach, reach, (cells, cells)) for _ in range(3)]
        for i in range(cells):
            for j in range(cells):
                y, z, far, right = i * step, j * step, (i + 1) * step % side, (j + 1) * step % side
                corners = field[y, z] + field[far, z] + field[y, right] + field[far, right]
                field[y + half, z + half] = corners / 4 + noise[0][i, j]
        for i in range(cells):
            for j in range(cells):
                y, z, far, right = i * step, j * step, (i + 1) * step % side, (j + 1) * step % side
                middle = field[y + half, z + half]
                above = field[(y - half) % side, z + half] + middle + field[y, z] + field[y, right]
                beside = field[y + half, (z - half) % side] + middle + field[y, z] + field[far, z]
                field[y, z + half] = above / 4 + noise[1][i, j]
                field[y + half, z] = beside / 4 + noise[2][i, j]
        step, reach = half, reach / decay**2
    return (field - field.min()) / (field.max() - field.min())


@pytest.mark.parametrize(("height", "width", "side"), [(32, 32, 32), (20, 33, 64), (5, 7, 8)])
@pytest.mark.parametrize("decay", [3.0, 1.4])
def test_plasma_point_by_point(height: int, width: int, side: int, decay: float) -> None:
    found = weather.plasma(rngs(), height, width, decay)
    for rng, result in zip(rngs(), found, strict=True):
        np.testing.assert_allclose(result, slow_plasma(rng, side, decay)[:height, :width], atol=1e-6)


def test_plasma_of_one_pixel() -> None:
    assert weather.plasma(rngs(), 1, 1, 2.0).shape == (2, 1, 1)


def test_the_quicker_the_decay_the_smoother_the_plasma() -> None:
    rough = [abs(np.diff(weather.plasma(rngs(8), 64, 64, decay), axis=1)).mean() for decay in (1.2, 1.75, 3.0)]
    assert rough[0] > 1.5 * rough[1] > 1.5 * rough[2]


@pytest.mark.parametrize("channels", [1, 3])
def test_fog_is_a_plasma_scaled_back(channels: int) -> None:
    """The brightest possible is what it was."""
    found = weather.fog(x(channels=channels), rngs(), 1.5, 1.75)
    for image, rng, result in zip(x(channels=channels), rngs(), found, strict=True):
        veil = 1.5 * slow_plasma(rng, 32, 1.75)
        np.testing.assert_allclose(result, (image + veil) * image.max() / (image.max() + 1.5), atol=1e-5)
        assert result.max() <= image.max() + 1e-6


def test_frost_adds_ice() -> None:
    texture = weather.ice(rngs(), 32, 32)
    colour = np.array(weather.ICE).reshape(3, 1, 1)
    np.testing.assert_allclose(weather.frost(x(), rngs(), 0.75, 0.45), 0.75 * x() + 0.45 * texture * colour, atol=1e-6)
    grey = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]
    single = x(channels=1)
    np.testing.assert_allclose(weather.frost(single, rngs(), 0.75, 0.45), 0.75 * single + 0.45 * texture * grey, atol=1e-6)


@pytest.mark.parametrize("size", [32, 128])
def test_ice_is_light_and_dark_in_patches_and_streaks(size: int) -> None:
    """Of about half brightness, with contrast both over the whole image and between neighbours; no two alike."""
    found = weather.ice(rngs(12), size, size)
    assert found.shape == (12, 1, size, size)
    assert 0 <= found.min() < 0.1 < 0.9 < found.max() <= 1
    assert 0.35 < found.mean() < 0.6
    assert 0.15 < found.std((2, 3)).mean() < 0.3
    smooth = ndimage.gaussian_filter(found, (0, 0, size / 10, size / 10))
    assert smooth.std((2, 3)).mean() > 0.05
    assert (found - smooth).std((2, 3)).mean() > 0.05
    assert abs(np.corrcoef(found[:, 0].reshape(12, -1)) - np.eye(12)).mean() < 0.35


LIGHT = (0.1, 0.2, 1, 0.6, 8, 3, 0.95)


def test_snow_whitens_and_adds_flakes() -> None:
    """From the same draws: flakes where noise is above the threshold, drawn out, added twice, once turned round."""
    found = weather.snow(x(), rngs(), *LIGHT)
    for image, rng, result in zip(x(), rngs(), found, strict=True):
        flakes = 0.1 + 0.2 * rng.standard_normal((1, 32, 32), dtype=np.float32)
        flakes[flakes < 0.6] = 0
        drawn = trail(np.minimum(flakes, 1)[None], np.array([[rng.uniform(-135, -45)]]), 8, 3)[0]
        grey = 0.299 * image[0] + 0.587 * image[1] + 0.114 * image[2]
        whitened = 0.95 * image + 0.05 * np.maximum(image, 1.5 * grey + 0.5)
        np.testing.assert_allclose(result, whitened + drawn + np.rot90(drawn, 2, (1, 2)), atol=1e-5)


def test_snow_takes_nothing_away_and_falls_down() -> None:
    """On black, flakes are longer than they are wide."""
    black = np.zeros((40, 1, 32, 32), dtype=np.float32)
    found = weather.snow(black, rngs(40), 0.1, 0.2, 1, 0.6, 8, 3, 1.0)
    assert found.min() >= 0
    assert abs(np.diff(found, axis=2)).mean() < 0.8 * abs(np.diff(found, axis=3)).mean()


def test_flakes_grow_with_zoom() -> None:
    black = np.zeros((20, 1, 64, 64), dtype=np.float32)
    fine, coarse = (weather.snow(black, rngs(20), 0.55, 0.3, zoom, 0.8, 1, 0.1, 1.0) for zoom in (1, 4))
    assert (np.diff(coarse > 0, axis=3)).mean() < 0.6 * (np.diff(fine > 0, axis=3)).mean()
