"""Regression scores against scipy's integrals and uncertainty-toolbox."""

from __future__ import annotations

import itertools
import math
import warnings

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from scipy.integrate import quad
from scipy.stats import norm
from torch import Tensor

from multitudes.scores import regression

with warnings.catch_warnings():  # of escapes in its docstrings
    warnings.simplefilter("ignore")
    from uncertainty_toolbox.metrics_scoring_rule import crps_gaussian, nll_gaussian


def members(count: int, rows: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Targets ``[N]``, means and variances ``[M, N]``."""
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(count, rows, dtype=torch.float64, generator=generator) * 2
    variance = torch.rand(count, rows, dtype=torch.float64, generator=generator) * 3 + 0.1
    return torch.randn(rows, dtype=torch.float64, generator=generator) * 2, mean, variance


def integrated(target: float, mean: np.ndarray, std: np.ndarray) -> float:
    """∫ (F(x) − [x ≥ y])² dx of the mixture."""

    def below(x: float) -> float:
        return float(norm.cdf((x - mean) / std).mean() ** 2)

    def above(x: float) -> float:
        return float(norm.sf((x - mean) / std).mean() ** 2)

    low, high = float((mean - 12 * std).min()), float((mean + 12 * std).max())
    ends = [low, *sorted({float(m) for m in mean} | {target}), high]
    pieces = [(a, b) for a, b in itertools.pairwise(ends) if b > a]
    return sum(quad(below if b <= target else above, a, b, epsabs=1e-10)[0] for a, b in pieces)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_crps_is_the_integral(count: int) -> None:
    """The CRPS of a mixture of Gaussians is scipy's integral."""
    targets, mean, variance = members(count, 4)
    found = regression.crps(targets, mean, variance)
    expected = [integrated(float(targets[n]), mean[:, n].numpy(), variance[:, n].sqrt().numpy()) for n in range(4)]
    assert found.tolist() == pytest.approx(expected, abs=1e-7)


def test_of_members_far_apart() -> None:
    """The CRPS of N(−5, 1) and N(5, 1) is scipy's integral."""
    mean, variance = torch.tensor([[-5.0], [5.0]]).double(), torch.ones(2, 1).double()
    for target in (-5.0, 0.0, 7.0):
        expected = integrated(target, np.array([-5.0, 5.0]), np.ones(2))
        assert float(regression.crps(torch.tensor([target]).double(), mean, variance)) == pytest.approx(expected, abs=1e-7)


def test_of_one_gaussian_as_uncertainty_toolbox_has_it() -> None:
    """CRPS and NLL of one Gaussian are uncertainty-toolbox's."""
    targets, mean, variance = members(1, 50)
    arrays = mean[0].numpy(), variance[0].sqrt().numpy(), targets.numpy()
    assert float(regression.crps(targets, mean, variance).mean()) == pytest.approx(crps_gaussian(*arrays), abs=1e-9)
    found = regression.gaussian_nll(targets, mean[0], variance[0]).mean()
    assert float(found) == pytest.approx(nll_gaussian(*arrays), abs=1e-9)


def test_gaussian_nll_is_torchs() -> None:
    """The NLL is torch's, with the constant term."""
    targets, mean, variance = members(1, 50)
    expected = F.gaussian_nll_loss(mean[0], targets, variance[0], full=True, reduction="none")
    torch.testing.assert_close(regression.gaussian_nll(targets, mean[0], variance[0]), expected)


@pytest.mark.parametrize("count", [1, 3])
def test_crps_of_members_without_a_variance(count: int) -> None:
    """E |X − y| − E |X − X'| / 2 over points; for one member, the absolute error."""
    targets, mean, _ = members(count, 6)
    found = regression.crps(targets, mean)
    near = (targets - mean).abs().mean(0)
    apart = (mean[:, None] - mean[None]).abs().mean((0, 1))
    torch.testing.assert_close(found, near - apart / 2)
    torch.testing.assert_close(regression.crps(targets, mean, torch.zeros_like(mean)), found)


def test_some_variances_are_zero() -> None:
    """Zero variances among others give the limit of small ones; a point mass at the target has CRPS 0."""
    targets, mean, variance = members(3, 5)
    variance[1] = 0
    small = torch.where(variance == 0, 1e-14, variance)
    torch.testing.assert_close(
        regression.crps(targets, mean, variance), regression.crps(targets, mean, small), atol=1e-6, rtol=0
    )
    assert regression.crps(targets, targets.repeat(3, 1), torch.zeros(3, 5).double()).tolist() == [0.0] * 5


def test_a_variance_of_zero_has_no_density_but_at_its_mean() -> None:
    """The NLL away from the mean is infinite, not NaN."""
    found = regression.gaussian_nll(torch.tensor([1.0]), torch.tensor([0.0]), torch.tensor([0.0]))
    assert float(found) == math.inf


def test_targets_of_several_numbers() -> None:
    """Targets of several numbers are scored entry by entry."""
    targets, mean, variance = members(2, 6)
    found = regression.crps(targets.reshape(3, 2), mean.reshape(2, 3, 2), variance.reshape(2, 3, 2))
    torch.testing.assert_close(found, regression.crps(targets, mean, variance).reshape(3, 2))


@settings(max_examples=40)
@given(count=st.integers(1, 5), scale=st.floats(0.01, 100), shift=st.floats(-50, 50), seed=st.integers(0, 2**31))
def test_crps_is_a_distance(count: int, scale: float, shift: float, seed: int) -> None:
    """The CRPS is not negative, has the unit of the target, and does not change with copies of a member."""
    targets, mean, variance = members(count, 3, seed)
    found = regression.crps(targets, mean, variance)
    assert bool((found >= 0).all())
    moved = regression.crps(targets * scale + shift, mean * scale + shift, variance * scale**2)
    torch.testing.assert_close(moved, found * scale, atol=1e-9 * scale, rtol=1e-7)
    copies = regression.crps(targets, mean[:1].repeat(3, 1), variance[:1].repeat(3, 1))
    torch.testing.assert_close(copies, regression.crps(targets, mean[:1], variance[:1]))
