"""Conformal prediction with MAPIE: sets of classes and intervals that cover the truth at the level asked for.

    pip install mapie

MAPIE calls a scikit-learn estimator. The ensemble has predicted already, so these estimators return their input columns. Any
array of a Prediction can be conformalised in this way, and no network runs twice.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from mapie.classification import SplitConformalClassifier
from mapie.conformity_scores import ResidualNormalisedScore
from mapie.metrics.classification import classification_coverage_score, classification_mean_width_score
from mapie.metrics.regression import regression_coverage_score, regression_mean_width_score
from mapie.regression import SplitConformalRegressor
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.datasets import load_digits
from torch import Tensor, nn

import multitudes as mt

LEVEL = 0.95


class GivenProbabilities(ClassifierMixin, BaseEstimator):
    """A classifier that returns its inputs as probabilities, [N, K]."""

    def __init__(self, classes: int = 2) -> None:
        self.classes = classes
        self.classes_ = np.arange(classes)

    def fit(self, X, y):
        return self

    def predict_proba(self, X):
        return X

    def predict(self, X):
        return X.argmax(1)


class GivenColumn(RegressorMixin, BaseEstimator):
    """A regressor that returns one column of its inputs, [N, D]."""

    def __init__(self, column: int = 0) -> None:
        self.column = column
        self.fitted_ = True

    def fit(self, X, y):
        return self

    def predict(self, X):
        return X[:, self.column]


def train(ens: mt.Ensemble, x: Tensor, y: Tensor, criterion, steps: int, lr: float) -> None:
    """Trains with Adam on batches of 64."""
    optimizer = torch.optim.Adam(ens.train().param_groups(lr=lr))
    for _ in range(steps):
        rows = torch.randint(len(x), (64,))
        optimizer.zero_grad()
        ens.loss(x[rows], y[rows], criterion).backward()
        optimizer.step()


def sets_of_digits() -> dict[str, tuple[float, float]]:
    """Returns coverage and mean size of the sets, by conformity score."""
    digits = load_digits()
    order = torch.randperm(len(digits.target))
    x, y = torch.tensor(digits.data, dtype=torch.float32)[order] / 16, torch.tensor(digits.target)[order]
    ens = mt.ensemble(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)), mt.Packed(), x[:2], seed=0)
    train(ens, x[:400], y[:400], F.cross_entropy, steps=60, lr=0.01)

    held_out, test = mt.predict(ens, x[400:1000]), mt.predict(ens, x[1000:])
    found = {}
    for score in ("lac", "aps"):
        mapie = SplitConformalClassifier(GivenProbabilities(10), LEVEL, conformity_score=score, random_state=0)
        mapie.conformalize(probabilities(held_out), y[400:1000].numpy())
        _, sets = mapie.predict_set(probabilities(test))
        found[score] = classification_coverage_score(y[1000:].numpy(), sets)[0], classification_mean_width_score(sets)[0]
    return found


def probabilities(pred: mt.Prediction) -> np.ndarray:
    """Returns the mixture's probabilities in double precision: MAPIE wants sums closer to one than float32 gives."""
    probs = pred.probs.double().numpy()
    return probs / probs.sum(1, keepdims=True)


def intervals_of_a_curve() -> dict[str, tuple[float, float]]:
    """Returns coverage and mean width of intervals: of constant width, and scaled by the ensemble's uncertainty."""
    x = torch.rand(3000, 1) * 6 - 3
    y = torch.sin(2 * x) + (0.05 + 0.3 * (x > 0)) * torch.randn_like(x)  # more noise on the right
    net = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    ens = mt.ensemble(net, mt.Deep(), x[:2], task="gaussian", seed=0)
    train(ens, x[:1000], y[:1000], mt.GaussianNLL(), steps=400, lr=0.01)

    def columns(pred: mt.Prediction) -> np.ndarray:
        return torch.cat([pred.mean, pred.std], 1).double().numpy()

    held_out, test = columns(mt.predict(ens, x[1000:2000])), columns(mt.predict(ens, x[2000:]))
    targets = y.squeeze(1).double().numpy()
    found = {}
    for name, score in {
        "absolute": "absolute",
        "by pred.std": ResidualNormalisedScore(residual_estimator=GivenColumn(1), prefit=True),
    }.items():
        mapie = SplitConformalRegressor(GivenColumn(0), LEVEL, conformity_score=score, prefit=True)
        mapie.conformalize(held_out, targets[1000:2000])
        _, bounds = mapie.predict_interval(test)
        found[name] = regression_coverage_score(targets[2000:], bounds)[0], regression_mean_width_score(bounds)[0]
    return found


def main() -> dict[str, tuple[float, float]]:
    torch.manual_seed(0)
    sets, intervals = sets_of_digits(), intervals_of_a_curve()
    print(f"asked for {LEVEL:.0%} coverage")
    for score, (coverage, size) in sets.items():
        print(f"sets of classes, {score:<14} coverage {coverage:.3f}   mean size  {size:.2f}")
    for score, (coverage, width) in intervals.items():
        print(f"intervals, {score:<20} coverage {coverage:.3f}   mean width {width:.2f}")
    return sets | intervals


if __name__ == "__main__":
    main()
