"""The bound of proposition C.1: moments against simulation and numpy, the bound over many layers, Fig. 5's setting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from multitudes.analysis import kl_bound
from multitudes.errors import InputError

pytestmark = pytest.mark.slow


def layer(seed: int, units: int = 1, inputs: int = 30) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns weights, means and variances of a made-up layer, of very different sizes."""
    rng = np.random.default_rng(seed)
    size = 10.0 ** rng.uniform(-1.5, 1)
    return rng.normal(0.1, 1, (units, inputs)), size * rng.normal(0.3, 1, inputs), rng.gamma(1, 1, inputs) + 0.01


@pytest.mark.slow
def test_moments_hold_in_simulation() -> None:
    """Equations 9, 11, 13 to 16: 400,000 draws of inputs and masks; the tolerance is five standard errors."""
    (weight,), mean, variance = layer(0)
    rng, p, draws = np.random.default_rng(1), 0.35, 400_000
    h = rng.normal(mean, np.sqrt(variance), (draws, len(mean)))
    for keep, moments in ((1.0, ("mean", "variance")), (p, ("masked_mean", "masked_variance"))):
        z = (h * (rng.random(h.shape) < keep)) @ weight
        first, second = (float(getattr(kl_bound(p, weight, mean, variance), name).flatten()) for name in moments)
        assert first == pytest.approx(z.mean(), abs=5 * z.std() / draws**0.5)
        assert second == pytest.approx(z.var(), abs=5 * ((z - z.mean()) ** 2).std() / draws**0.5)


def test_the_divergence_is_the_integral_of_the_densities() -> None:
    """Equation 17, by quadrature of two normal densities."""
    weight, mean, variance = layer(3)
    result = kl_bound([0.2, 0.9], weight, mean, variance)
    for k in range(2):
        plain = stats.norm(float(result.mean), float(result.variance) ** 0.5)
        masked = stats.norm(float(result.masked_mean[0, k]), float(result.masked_variance[0, k]) ** 0.5)
        ends = plain.ppf(1e-13), plain.ppf(1 - 1e-13)
        value, _ = integrate.quad(lambda z: plain.pdf(z) * (plain.logpdf(z) - masked.logpdf(z)), *ends, limit=200)  # noqa: B023
        assert float(result.kl[0, k]) == pytest.approx(value, rel=1e-6)


def test_the_bound_is_above_the_divergence() -> None:
    """At each of 2000 points, 100 layers and 20 probabilities, where it is written out by hand (eq. 8)."""
    p = np.linspace(0.02, 1, 20)
    for seed in range(100):
        weight, mean, variance = layer(seed)
        result = kl_bound(p, weight, mean, variance)
        assert bool((result.bound >= result.kl - 1e-12).all())
        mu, var = (weight[0] * mean).sum(), (weight[0] ** 2 * variance).sum()
        spread = (weight[0] ** 2 * mean**2).sum()
        expected = 0.5 * (p + 1 / p - 2 + p * (1 - p) * spread / var + ((1 - p) * mu) ** 2 / (p * var))
        np.testing.assert_allclose(result.bound[0], expected)


def test_with_all_weights_nothing_moves() -> None:
    result = kl_bound(1.0, *layer(5, units=3))
    for name in ("kl", "bound"):
        np.testing.assert_allclose(getattr(result, name), np.zeros((3, 1)), atol=1e-15)


def test_figure_5_has_a_row_for_each_deviation() -> None:
    """μ = w = 0.1 and 100 inputs, so μ_z = 1: the variance of an input is σ_z² / (C w²)."""
    sigma = torch.tensor([0.5, 2.0])
    result = kl_bound(torch.linspace(0.1, 1, 10), torch.full((2, 100), 0.1), 0.1, (sigma**2 / 1.0)[:, None])
    np.testing.assert_allclose(result.mean, [1, 1], rtol=1e-6)
    np.testing.assert_allclose(result.variance, sigma**2, rtol=1e-6)
    assert result.bound.shape == (2, 10)
    assert bool((result.bound[0, :-1] > result.bound[1, :-1]).all()), "a narrower unit is farther away"
    figure = result.figure(names=["σ = 0.5", "σ = 2"], theme="dark")
    np.testing.assert_allclose(figure.axes[0].lines[0].get_ydata(), result.bound[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, [1.0, 2.0], 0.1, 1.0), "p must be above 0"),
        ((1.1, [1.0, 2.0], 0.1, 1.0), "p must be above 0"),
        ((0.5, [1.0, 2.0], 0.1, -1.0), "variance is negative"),
        ((0.5, [1.0, 2.0], [0.1, 0.2, 0.3], 1.0), r"mean must be a number, \[2\] or \[1, 1\], not \[3\]"),
        ((0.5, torch.ones(2, 2), 0.1, torch.eye(2)), "diagonal"),
        ((0.5, [0.0, 0.0], 0.1, 1.0), "variance 0"),
        ((0.5, torch.ones(2, 3, 3, 3), 0.1, 1.0), "flatten a kernel"),
    ],
)
def test_bad_input_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        kl_bound(*arguments)
