"""Our conformal sets and intervals are those of TorchCP and MAPIE, and our scores of them theirs."""

from __future__ import annotations

import importlib
import sys
import warnings
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from mapie.metrics.classification import (
    classification_coverage_score,
    classification_mean_width_score,
    classification_ssc_score,
)
from mapie.metrics.regression import regression_coverage_score, regression_mean_width_score, regression_ssc_score
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

import multitudes as mt
from multitudes.scores.conformal import Intervals, Sets

LEVEL = 0.9


def classes(count: int, seed: int) -> mt.Prediction:
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(count, 6, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(truth.softmax(1), 1, generator=generator).squeeze(1)
    return mt.Prediction(logits=2 * truth + 0.5 * torch.randn(3, count, 6, generator=generator).double(), targets=labels)


def numbers(count: int, seed: int) -> mt.Prediction:
    generator = torch.Generator().manual_seed(seed)
    std = 0.2 + torch.rand(count, generator=generator, dtype=torch.float64)
    mean = 0.1 * torch.randn(3, count, generator=generator, dtype=torch.float64)
    noise = torch.randn(count, generator=generator, dtype=torch.float64)
    return mt.Prediction(mean=mean, variance=(std / 2).square().expand_as(mean), targets=std * noise)


@pytest.fixture
def torchcp(monkeypatch: pytest.MonkeyPatch) -> Any:
    """TorchCP without torchsort, which has to be compiled and which one loss alone uses."""
    sorting = ModuleType("torchsort")
    sorting.soft_rank = sorting.soft_sort = None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchsort", sorting)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield importlib.import_module


@pytest.mark.parametrize("score", ["thr", "aps", "raps"])
def test_sets_of_torchcp(torchcp: Any, score: Any) -> None:
    scores = torchcp("torchcp.classification.score")
    theirs = {
        "thr": lambda: scores.LAC(),
        "aps": lambda: scores.APS(randomized=False),
        "raps": lambda: scores.RAPS(randomized=False, penalty=0.05, kreg=2),
    }[score]()
    held_out, test = classes(500, 0), classes(300, 1)
    predictor = torchcp("torchcp.classification.predictor").SplitPredictor(theirs, alpha=1 - LEVEL)
    predictor.calculate_threshold(held_out.logs, held_out.targets)
    expected = predictor.predict_with_logits(test.logs)
    within = mt.conformal(held_out, level=LEVEL, score=score, seed=None, penalty=0.05, free=2)
    found = within(test)
    assert isinstance(found, Sets)
    assert float(within.quantile) == pytest.approx(float(predictor.q_hat), abs=1e-9)
    assert torch.equal(found.contains.long(), expected.long())
    metrics = torchcp("torchcp.classification.utils.metrics").Metrics()
    assert found.scores()["coverage"] == pytest.approx(float(metrics("coverage_rate")(expected, test.targets)), abs=1e-6)
    assert found.scores()["size"] == pytest.approx(float(metrics("average_size")(expected)), abs=1e-5)


class Given(ClassifierMixin, BaseEstimator):
    """A classifier that returns its inputs as probabilities."""

    classes_ = np.arange(6)

    def fit(self, X: Any, y: Any) -> Given:
        return self

    def predict_proba(self, X: Any) -> Any:
        return X

    def predict(self, X: Any) -> Any:
        return X.argmax(1)


class Column(RegressorMixin, BaseEstimator):
    """A regressor that returns one column of its inputs."""

    def __init__(self, column: int = 0) -> None:
        self.column, self.fitted_ = column, True

    def fit(self, X: Any, y: Any) -> Column:
        return self

    def predict(self, X: Any) -> Any:
        return X[:, self.column]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # MAPIE divides by 0 for sizes that no set has
@pytest.mark.parametrize(("score", "theirs"), [("thr", "lac"), ("aps", "aps")])
def test_sets_of_mapie(score: Any, theirs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The randomised sets are equal too, where MAPIE is given our random numbers: its u is our 1 − u."""
    from mapie.classification import SplitConformalClassifier

    held_out, test = classes(500, 0), classes(300, 1)
    within = mt.conformal(held_out, level=LEVEL, score=score, seed=5)
    draws = iter([1 - within.rule.shares(500, held_out=True), 1 - within.rule.shares(300, held_out=False)])
    monkeypatch.setattr("mapie.conformity_scores.sets.aps.check_random_state", lambda _: Drawn(draws))
    mapie = SplitConformalClassifier(Given(), LEVEL, conformity_score=theirs)
    mapie.conformalize(held_out.logs.exp().numpy(), held_out.targets.numpy())  # type: ignore[union-attr]
    options = {"conformity_score_params": {"include_last_label": "randomized"}} if score == "aps" else {}
    _, expected = mapie.predict_set(test.logs.exp().numpy(), **options)
    found = within(test)
    assert isinstance(found, Sets)
    np.testing.assert_array_equal(found.contains.numpy(), expected[:, :, 0])
    labels = test.targets.numpy()  # type: ignore[union-attr]
    own = found.scores()
    assert own["coverage"] == pytest.approx(classification_coverage_score(labels, expected)[0])
    assert own["size"] == pytest.approx(classification_mean_width_score(expected)[0])
    assert own["size_stratified_coverage"] == pytest.approx(classification_ssc_score(labels, expected)[0])


class Drawn:
    """A source of random numbers that are given."""

    def __init__(self, draws: Any) -> None:
        self.draws = draws

    def uniform(self, size: Any) -> Any:
        return next(self.draws).numpy().reshape(size)


def columns(pred: mt.Prediction) -> Any:
    """Mean, standard deviation and the ends of the central interval."""
    return torch.stack([pred.mean, pred.std, *pred.interval(LEVEL)], 1).numpy()


@pytest.mark.parametrize("score", ["split", "scaled", "cqr"])
def test_intervals_of_mapie(score: Any) -> None:
    from mapie.conformity_scores import ResidualNormalisedScore
    from mapie.regression import ConformalizedQuantileRegressor, SplitConformalRegressor

    held_out, test = numbers(500, 0), numbers(300, 1)
    within = mt.conformal(held_out, level=LEVEL, score=score)
    found = within(test)
    assert isinstance(found, Intervals)
    if score == "cqr":
        mapie = ConformalizedQuantileRegressor([Column(2), Column(3), Column(0)], LEVEL, prefit=True)
    else:
        kind = "absolute" if score == "split" else ResidualNormalisedScore(residual_estimator=Column(1), prefit=True)
        mapie = SplitConformalRegressor(Column(0), LEVEL, conformity_score=kind, prefit=True)
    mapie.conformalize(columns(held_out), held_out.targets.numpy())  # type: ignore[union-attr]
    options = {"symmetric_correction": True} if score == "cqr" else {}
    _, bounds = mapie.predict_interval(columns(test), **options)
    np.testing.assert_allclose(bounds[:, 0, 0], found.low.numpy(), atol=1e-6)
    np.testing.assert_allclose(bounds[:, 1, 0], found.high.numpy(), atol=1e-6)
    own, targets = found.scores(), test.targets.numpy()  # type: ignore[union-attr]
    assert own["coverage"] == pytest.approx(regression_coverage_score(targets, bounds)[0])
    assert own["width"] == pytest.approx(regression_mean_width_score(bounds)[0])
    if score != "split":
        assert own["size_stratified_coverage"] == pytest.approx(regression_ssc_score(targets, bounds, num_bins=3)[0])


@pytest.mark.parametrize(("score", "theirs"), [("split", "ABS"), ("cqr", "CQR")])
def test_intervals_of_torchcp(torchcp: Any, score: Any, theirs: str) -> None:
    scores = torchcp("torchcp.regression.score")
    held_out, test = numbers(500, 0), numbers(300, 1)
    kind = getattr(scores, theirs)()
    outputs = [one.mean[:, None] if score == "split" else torch.stack(one.interval(LEVEL), 1) for one in (held_out, test)]
    values = kind(outputs[0], held_out.targets[:, None])  # type: ignore[index]
    rank = int(np.ceil((len(values) + 1) * LEVEL))
    bounds = kind.generate_intervals(outputs[1], values.flatten().sort().values[rank - 1 : rank])[:, 0]
    found = mt.conformal(held_out, level=LEVEL, score=score)(test)
    assert isinstance(found, Intervals)
    torch.testing.assert_close(bounds, torch.stack([found.low, found.high], 1), rtol=0, atol=1e-6)
