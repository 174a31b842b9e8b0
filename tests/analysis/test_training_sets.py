"""Bias and variance over training sets: exact where all training sets can be listed, and by hand for trained ensembles."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import multitudes as mt
from multitudes.analysis import bias_variance
from multitudes.data.dataset import Data
from multitudes.errors import InputError

pytestmark = pytest.mark.slow

SIGNS = np.array(list(product((-1.0, 1.0), repeat=4)))
"""Every training set of four targets 3 ± 2: as seeds run through all, means over sets are expectations."""
TEST = Data(torch.zeros(2, 1), torch.tensor([[5.0], [4.0]]))


def train(seed: int) -> np.ndarray:
    return 3 + 2 * SIGNS[seed]


def means_of_parts(data: np.ndarray, members: int, seed: int) -> Callable[[Tensor], Tensor]:
    """Member m predicts the mean of its part of the four targets, everywhere."""
    parts = torch.tensor(data).reshape(members, -1).mean(1)
    return lambda x: parts[:, None].expand(members, len(x))


def test_constant_predictors_have_the_bias_and_variance_of_a_mean() -> None:
    """Targets have variance 4. The ensemble is the mean of all four: 4/4. A member is the mean of 4/M of them: M."""
    result = bias_variance(means_of_parts, train, TEST, members=(1, 2, 4), sets=16)
    bias = ((3 - 5) ** 2 + (3 - 4) ** 2) / 2
    for name in ("bias", "member_bias"):
        np.testing.assert_allclose(getattr(result, name), [bias] * 3)
    np.testing.assert_allclose(result.variance, [1, 1, 1])
    np.testing.assert_allclose(result.member_variance, [1, 2, 4])
    np.testing.assert_allclose(result.error, [bias + 1] * 3)
    np.testing.assert_allclose(result.member_error, [bias + 1, bias + 2, bias + 4])
    figure = result.figure()
    np.testing.assert_allclose([line.get_ydata() for line in figure.axes[1].lines], [[1, 1, 1], [1, 2, 4]])


def test_least_squares_has_its_textbook_variance() -> None:
    """Slope through the origin with targets 2x ± 2 at x = 1, 2, 2, 4: variance 4 z² / Σ x²; no bias, so the noise remains."""
    x, z = np.array([1.0, 2.0, 2.0, 4.0]), np.array([0.5, 3.0])

    def learn(data: np.ndarray, members: int, seed: int) -> Callable[[Tensor], Tensor]:
        slope = (x @ data) / (x @ x)
        return lambda points: slope * points.flatten()[None]

    test = Data(torch.tensor(z)[:, None], torch.tensor(2 * z + np.array([1, -1]))[:, None])
    result = bias_variance(learn, lambda seed: 2 * x + 2 * SIGNS[seed], test, members=[1], sets=16)
    np.testing.assert_allclose(result.variance, [(4 * z**2 / (x @ x)).mean()])
    np.testing.assert_allclose(result.bias, [1.0])


def made(seed: int) -> Data:
    return mt.data.generated.noisy_function(examples=16, seed=seed)


def test_ensembles_trained_by_fit() -> None:
    """The same numbers, by numpy from the members' outputs of ensembles that learn kept."""
    kept: dict[int, mt.Ensemble] = {}

    def learn(data: Any, members: int, seed: int) -> mt.Ensemble:
        method = mt.Deep(members=members)
        kept[seed] = mt.ensemble(nn.Linear(1, 1), method, torch.rand(3, 1), task="regression", seed=seed, check=False)
        mt.fit(kept[seed], data, mt.Recipe(epochs=1, batch=8, seed=seed), progress=False)
        return kept[seed]

    test = mt.data.generated.noisy_function("test", examples=7)
    result = bias_variance(learn, made, test, members=(3,), sets=2, progress=False)
    x, y = test.batch(slice(0, 7))
    outputs = np.stack([kept[s].eval()(x).detach().double().numpy()[..., 0] for s in range(2)])  # [S, M, N]
    ours, targets = outputs.mean(1), y.numpy().T
    assert float(result.error) == pytest.approx(((ours - targets) ** 2).mean(), rel=1e-6)
    assert float(result.variance) == pytest.approx(ours.var(0).mean(), rel=1e-6)
    assert float(result.bias) == pytest.approx(((ours.mean(0) - targets) ** 2).mean(), rel=1e-6)
    assert float(result.member_variance) == pytest.approx(outputs.var(0).mean(), rel=1e-6)
    assert float(result.member_error) == pytest.approx(((outputs - targets) ** 2).mean(), rel=1e-6)


@pytest.mark.parametrize(
    ("learn", "options", "message"),
    [
        (means_of_parts, {"sets": 1}, "sets must be a whole number of at least 2"),
        (means_of_parts, {"members": (0,)}, "members must be"),
        (lambda *_: 3, {}, "learn returned a int"),
        (lambda *_: lambda x: x.T.expand(5, -1), {}, r"shape \[5, 2\] for 2 targets"),
    ],
)
def test_bad_input_is_refused(learn: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        bias_variance(learn, train, TEST, **{"members": (2,), "sets": 2, **options})


def test_a_classifier_and_a_test_set_without_targets_are_refused() -> None:
    ens = mt.ensemble(nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 3)), mt.Deep(members=2), torch.randn(3, 1))
    with pytest.raises(InputError, match=r"squared error.*task='regression'"):
        bias_variance(lambda *_: ens, train, TEST, members=(2,), sets=2)
    with pytest.raises(InputError, match="pairs"):
        bias_variance(means_of_parts, train, torch.zeros(3, 1))
