"""Conformal prediction with MAPIE, from the arrays of a prediction: intervals that are as wide as our uncertainty says.

    pip install mapie

MAPIE calls an estimator of scikit-learn. The ensemble has predicted already, so this one returns a column of its inputs.
"""

import torch
from mapie.conformity_scores import ResidualNormalisedScore
from mapie.metrics.regression import regression_coverage_score, regression_mean_width_score
from mapie.regression import SplitConformalRegressor
from sklearn.base import BaseEstimator, RegressorMixin
from torch import nn

import multitudes as mt

LEVEL = 0.95


class Column(RegressorMixin, BaseEstimator):
    """A regressor that returns one column of its inputs, [N, D]."""

    def __init__(self, column: int = 0) -> None:
        self.column, self.fitted_ = column, True

    def fit(self, X, y):
        return self

    def predict(self, X):
        return X[:, self.column]


def main() -> dict[str, tuple[float, float]]:
    torch.manual_seed(0)
    x = torch.rand(3000, 1) * 6 - 3
    y = torch.sin(2 * x) + (0.05 + 0.3 * (x > 0)) * torch.randn_like(x)  # more noise on the right
    net = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    ens = mt.ensemble(net, mt.Deep(members=4), x[:2], task="gaussian", seed=0)
    optimizer = torch.optim.Adam(ens.train().param_groups(lr=0.01))
    for rows in (torch.randint(1000, (64,)) for _ in range(400)):
        optimizer.zero_grad()
        ens.loss(x[rows], y[rows], mt.GaussianNLL()).backward()
        optimizer.step()

    pred, targets = mt.predict(ens, x[1000:]), y[1000:, 0].double().numpy()
    columns = torch.cat([pred.mean, pred.std], 1).double().numpy()
    by_std, found = ResidualNormalisedScore(residual_estimator=Column(1), prefit=True), {}
    print(f"asked for {LEVEL:.0%} coverage")
    for name, score in {"absolute": "absolute", "by pred.std": by_std}.items():
        mapie = SplitConformalRegressor(Column(0), LEVEL, conformity_score=score, prefit=True)
        mapie.conformalize(columns[:1000], targets[:1000])
        _, bounds = mapie.predict_interval(columns[1000:])
        found[name] = regression_coverage_score(targets[1000:], bounds)[0], regression_mean_width_score(bounds)[0]
        print(f"{name:<12} coverage {found[name][0]:.3f}   mean width {found[name][1]:.2f}")
    return found


if __name__ == "__main__":
    main()
