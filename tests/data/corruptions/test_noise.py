"""Noise has the mean and the variance that its formula says."""

from __future__ import annotations

import numpy as np
import pytest

from multitudes.data.corruptions import noise


def rngs(count: int = 1) -> list[np.random.Generator]:
    return [np.random.default_rng(i) for i in range(count)]


def flat(value: float, count: int = 1) -> noise.Array:
    return np.full((count, 3, 200, 200), value, dtype=np.float32)


@pytest.mark.parametrize("value", [0.25, 0.8])
@pytest.mark.parametrize("number", [0.06, 0.38])
def test_gaussian_noise(value: float, number: float) -> None:
    """The same spread whatever the pixel."""
    found = noise.gaussian_noise(flat(value), rngs(), number)
    assert found.mean() == pytest.approx(value, abs=5 * number / np.sqrt(found.size))
    assert found.std() == pytest.approx(number, rel=0.01)


@pytest.mark.parametrize("value", [0.25, 0.8])
@pytest.mark.parametrize("number", [500, 3])
def test_shot_noise(value: float, number: float) -> None:
    """A Poisson number of photons: the variance is the mean divided by λ, and all values are whole photons."""
    found = noise.shot_noise(flat(value), rngs(), number)
    spread = np.sqrt(value / number)
    assert found.mean() == pytest.approx(value, abs=5 * spread / np.sqrt(found.size))
    assert found.std() == pytest.approx(spread, rel=0.01)
    np.testing.assert_allclose(found * number, np.rint(found * number), atol=1e-3)


@pytest.mark.parametrize("number", [0.01, 0.27])
def test_impulse_noise(number: float) -> None:
    """The share is of values, half of it white and half black, and the rest stays."""
    found = noise.impulse_noise(flat(0.5), rngs(), number)
    assert set(np.unique(found)) == {0.0, 0.5, 1.0}
    for extreme in (0, 1):
        assert (found == extreme).mean() == pytest.approx(number / 2, abs=5 * np.sqrt(number / 2 / found.size))
    assert len(np.unique(found.transpose(0, 2, 3, 1).reshape(-1, 3), axis=0)) > 3  # channels by themselves


@pytest.mark.parametrize("value", [0.25, 0.8])
def test_speckle_noise(value: float) -> None:
    """The brighter the pixel the more."""
    found = noise.speckle_noise(flat(value), rngs(), 0.2)
    assert found.mean() == pytest.approx(value, abs=0.003)
    assert found.std() == pytest.approx(0.2 * value, rel=0.01)


@pytest.mark.parametrize("kind", [noise.gaussian_noise, noise.shot_noise, noise.impulse_noise, noise.speckle_noise])
def test_images_have_noise_of_their_own(kind: noise.Rngs) -> None:
    found = kind(flat(0.5, 2), rngs(2), 0.3)  # type: ignore[operator]
    assert abs(np.corrcoef(found[0].ravel(), found[1].ravel())[0, 1]) < 0.02


def test_uniform_numbers_fill_their_range() -> None:
    found = noise.uniform(rngs(3), -45, 45, 1000)
    assert found.shape == (3, 1000)
    assert -45 <= found.min() < -44 < 44 < found.max() <= 45
