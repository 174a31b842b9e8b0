"""Functions drawn from priors: moments by hand, all functions of a small ensemble listed, and nothing changed."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import multitudes as mt
from multitudes.analysis import function_prior
from multitudes.errors import InputError

pytestmark = pytest.mark.slow

X = torch.tensor([-2.0, 0.5, 3.0])


class Sign(nn.Module):
    """The activation of Fig. 3."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sign()


def net(hidden: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(1, hidden), Sign(), nn.Linear(hidden, 1))


def made(method: mt.Method, hidden: int = 4) -> mt.Ensemble:
    return mt.ensemble(net(hidden), method, torch.randn(3, 1), task="regression", seed=0, check=False)


BOTH = ("0", "2")


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [mt.Single(), mt.Deep(members=2), mt.EMP(patch=BOTH, components=2), mt.ECMP(patch=BOTH, components=2)],
    ids=lambda method: type(method).__name__,
)
def test_moments_of_the_gaussian_prior(method: mt.Method) -> None:
    """Var f(x) = 20 + H·5. Cov(f(x), f(y)) has the arcsine law: E[sign a sign b] = 2/π asin(corr(a, b)).

    EMP, ECMP and the explicit ensemble choose among independent Gaussians, so a single function has the same prior.
    """
    draws, hidden = 800, 4
    result = function_prior(made(method, hidden), X, draws, weight_variance=5.0, bias_variance=20.0)
    x = X.double().numpy()
    inner = 20 + 5 * np.outer(x, x)
    deviation = np.sqrt(np.diag(inner))
    expected = 20 + hidden * 5 * 2 / np.pi * np.arcsin((inner / np.outer(deviation, deviation)).clip(-1, 1))
    np.testing.assert_allclose(np.diag(expected), 40)
    error = 5 * 40 * (2 / draws) ** 0.5
    np.testing.assert_allclose(result.covariance, expected, atol=error)
    np.testing.assert_allclose(result.mean, np.zeros(3), atol=5 * (40 / draws) ** 0.5)
    np.testing.assert_allclose(result.variance, result.values.numpy().var(0))


def test_dropped_weights_lose_units() -> None:
    """DropConnect with p = 0.5 keeps W/(1 − p) of half the units: Var f = 20 + H · 5 · E[mask²/(1 − p)²] = 20 + 2·H·5.

    A unit whose w is dropped is constant, with probability 0.5; the others have the arcsine law with w twice as large.
    """
    draws, hidden = 800, 4
    result = function_prior(made(mt.DropConnect(p=0.5), hidden), X, draws, weight_variance=5.0, bias_variance=20.0)
    x = X.double().numpy()
    inner = 20 + 20 * np.outer(x, x)
    deviation = np.sqrt(np.diag(inner))
    signs = 0.5 + 0.5 * 2 / np.pi * np.arcsin((inner / np.outer(deviation, deviation)).clip(-1, 1))
    expected = 20 + 2 * hidden * 5 * signs
    np.testing.assert_allclose(np.diag(expected), 60)
    np.testing.assert_allclose(result.covariance, expected, atol=5 * 60 * (2.5 / draws) ** 0.5)


def test_functions_of_one_set_of_weights_are_those_of_all_choices() -> None:
    """EMP with two components in each of two layers has four functions; all occur, each about equally often."""
    ens = made(mt.EMP(patch=BOTH, components=2))
    p = {name: value.detach() for name, value in ens.named_parameters()}
    expected = []
    for a, b in product(range(2), repeat=2):
        hidden = (X[:, None] @ p["0.weight"][a].T + p["0.bias"][a]).sign()
        expected.append((hidden @ p["2.weight"][b].T + p["2.bias"][b]).flatten().double())
    result = function_prior(ens, X, 200)
    kinds = [min(range(4), key=lambda k: float((row - expected[k]).abs().max())) for row in result.values]
    for row, kind in zip(result.values, kinds, strict=True):
        np.testing.assert_allclose(row, expected[kind], rtol=1e-5)
    assert min(kinds.count(k) for k in range(4)) > 30


def test_members_are_chosen_if_the_method_does_not_draw() -> None:
    ens = made(mt.Deep(members=3))
    result = function_prior(ens, X[:, None], 60)
    members = ens.eval()(X[:, None]).detach()[..., 0].double()
    rows = {tuple(row.tolist()) for row in result.values}
    assert rows == {tuple(row.tolist()) for row in members}


def test_weights_are_drawn_once_or_for_each_function() -> None:
    ens = made(mt.Single())
    once = function_prior(ens, X, 5, weight_variance=1.0, fresh=False)
    assert len({tuple(row.tolist()) for row in once.values}) == 1
    each = function_prior(ens, X, 5, weight_variance=1.0)
    assert len({tuple(row.tolist()) for row in each.values}) > 1
    zero = function_prior(ens, X, 2, weight_variance=0.0)
    np.testing.assert_allclose(zero.values, np.full((2, 3), float(dict(ens.named_parameters())["2.bias"].detach())))


@pytest.mark.parametrize("method", [mt.MCDropout(p=0.5), mt.ECMP(patch=BOTH)], ids=lambda method: type(method).__name__)
def test_the_ensemble_is_not_changed_and_seeds_repeat(method: mt.Method) -> None:
    ens = made(method, 16)
    before = {name: value.clone() for name, value in ens.state_dict().items()}
    output = ens.eval()(X[:, None])
    first, again, other = (function_prior(ens, X, 30, weight_variance=5.0, seed=seed).values for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert all(torch.equal(value, before[name]) for name, value in ens.state_dict().items())
    assert torch.equal(ens(X[:, None]), output)
    assert len({tuple(row.tolist()) for row in function_prior(ens, X, 30).values}) > 10


def test_the_figure_shows_the_first_functions() -> None:
    result = function_prior(made(mt.Single()), X, 8, weight_variance=1.0)
    ax = result.figure(curves=2, theme="dark").axes[0]
    np.testing.assert_allclose([line.get_ydata() for line in ax.lines], result.values[:2])


@pytest.mark.parametrize(
    ("x", "options", "message"),
    [
        (torch.zeros(3, 2), {}, r"x must be \[N\] or \[N, 1\]"),
        (X, {"draws": 0}, "draws must be"),
        (X, {"weight_variance": -1.0}, "weight_variance must be"),
    ],
)
def test_bad_input_is_refused(x: Tensor, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        function_prior(made(mt.Single()), x, **options)


def test_several_outputs_are_refused() -> None:
    ens = mt.ensemble(nn.Linear(1, 2), mt.Single(), torch.randn(3, 1), task="regression", check=False)
    with pytest.raises(InputError, match=r"shape \[3, 2\].*needs one output"):
        function_prior(ens, X, 4)
