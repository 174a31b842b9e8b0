"""EnsembleClassifier and EnsembleRegressor pass scikit-learn's own checks, and work in pipelines and grid searches."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import multitudes as mt
from multitudes.integrations.sklearn import EnsembleClassifier, EnsembleRegressor
from multitudes.integrations.tabular import Tabular

pytestmark = pytest.mark.slow
SMALL: Any = {"hidden": (16,), "epochs": 25, "batch": 32, "lr": 0.03, "dropout": 0.0, "random_state": 0}
TWO = mt.BatchEnsemble(members=2)


@parametrize_with_checks([EnsembleClassifier(TWO, **SMALL), EnsembleRegressor(TWO, **{**SMALL, "epochs": 40})])
@pytest.mark.filterwarnings("ignore")
def test_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    """No check is expected to fail."""
    check(estimator)


def test_probabilities_are_those_of_the_mixture_and_calibrated() -> None:
    x, y = load_breast_cancer(return_X_y=True)
    model = EnsembleClassifier(mt.Packed(members=2, alpha=2), **SMALL).fit(x[:400], y[:400])
    probs = model.predict_proba(x[400:])
    assert probs.shape == (169, 2) and np.allclose(probs.sum(1), 1)
    assert model.score(x[400:], y[400:]) > 0.93
    pred = model.prediction(x[400:])
    assert pred.count == 2 and pred.calibrator is not None
    assert np.allclose(pred.probs.numpy(), probs)
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict_proba(x[400:]), probs)
    same = clone(model).fit(x[:400], y[:400])
    assert np.array_equal(same.predict_proba(x[400:]), probs)


def test_intervals_cover_and_have_the_units_of_the_targets() -> None:
    x, y = load_diabetes(return_X_y=True)
    model = EnsembleRegressor(TWO, **{**SMALL, "epochs": 60}).fit(x[:300], y[:300])
    mean, std = model.predict(x[300:]), model.predict_std(x[300:])
    low, high = model.predict_interval(x[300:], 0.9).T
    assert model.score(x[300:], y[300:]) > 0.3
    assert bool((low < mean).all() and (mean < high).all() and (std > 0).all())
    assert 0.75 < float(((low < y[300:]) & (y[300:] < high)).mean()) <= 1
    scaled = EnsembleRegressor(TWO, **{**SMALL, "epochs": 60}).fit(x[:300], 100 * y[:300] + 7)
    assert np.allclose(scaled.predict(x[300:]), 100 * mean + 7, rtol=1e-3)
    assert np.allclose(scaled.predict_std(x[300:]), 100 * std, rtol=1e-2)


def frame(rows: int = 200) -> tuple[Any, Any]:
    """Numbers, text, a category and a code; the class depends on all but one."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "size": rng.normal(50, 20, rows),
            "colour": rng.choice(["red", "green", "blue"], rows),
            "kind": pd.Categorical(rng.choice(["a", "b"], rows)),
            "code": rng.integers(3, 6, rows),
            "noise": rng.normal(size=rows),
        }
    )
    return table, np.where((table["colour"] == "red") ^ (table["kind"] == "a") ^ (table["code"] == 4), "yes", "no")


def test_a_frame_of_numbers_and_categories() -> None:
    """Columns by dtype, and by name; an unknown category is no error, and other columns are one."""
    table, y = frame(400)
    model = EnsembleClassifier(TWO, **{**SMALL, "epochs": 60}, categories=["code"]).fit(table[:300], y[:300])
    assert [table.columns[place] for place in model.columns_.codes] == ["colour", "kind", "code"]
    assert model.columns_.sizes == [4, 3, 4]
    assert model.score(table[300:], y[300:]) > 0.9
    strange = table[300:].assign(colour="pink", kind=None)
    assert model.predict_proba(strange).shape == (100, 2)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(table.rename(columns={"size": "length"}))
    with pytest.raises(ValueError, match="NaN"):
        model.predict(table.assign(size=np.nan))
    with pytest.raises(mt.InputError, match="categories= names 'cod'"):
        EnsembleClassifier(TWO, categories=["cod"], **SMALL).fit(table, y)
    with pytest.raises(mt.InputError, match=r"column 'day' is datetime64.*neither numbers nor categories"):
        EnsembleClassifier(TWO, **SMALL).fit(table.assign(day=pd.date_range("2020", periods=400)), y)
    places = EnsembleClassifier(TWO, **SMALL, categories=[1, 2, 3]).fit(table.to_numpy(), y)
    assert places.columns_.sizes == [4, 3, 4]
    assert places.predict(table.to_numpy()[:3]).shape == (3,)
    only = EnsembleClassifier(mt.Packed(members=2, alpha=2), **SMALL).fit(table[["colour", "kind"]], y)
    assert only.predict(table[["colour", "kind"]]).shape == (400,)


def test_in_a_pipeline_and_a_grid_search() -> None:
    """The method is a parameter, and so are its settings."""
    x, y = load_breast_cancer(return_X_y=True)
    base = EnsembleClassifier(mt.Deep(members=2), **{**SMALL, "epochs": 5})
    line = make_pipeline(MinMaxScaler(), base)
    name = "ensembleclassifier__method"
    search = GridSearchCV(line, [{name: [TWO, mt.Deep(members=1)]}, {f"{name}__members": [3]}], cv=2).fit(x, y)
    found = [(type(p.get(name, base.method)).__name__, p.get(f"{name}__members")) for p in search.cv_results_["params"]]
    assert found == [("BatchEnsemble", None), ("Deep", None), ("Deep", 3)]
    assert not np.isnan(search.cv_results_["mean_test_score"]).any()
    assert base.set_params(method__members=5).method == mt.Deep(members=5)
    assert EnsembleClassifier().get_params()["method__members"] == 16
    assert cross_val_score(base, x, y, cv=2, scoring="neg_log_loss").mean() < 0
    with pytest.raises(mt.InputError, match="has no settings alpha"):
        base.set_params(method__alpha=2)
    with pytest.raises(mt.InputError, match="method must be a method"):
        EnsembleClassifier("packed").fit(x, y)
    with pytest.raises(mt.InputError, match="held_out=2 must be a share"):
        EnsembleClassifier(TWO, held_out=2).fit(x, y)


def test_torchs_random_state_is_untouched() -> None:
    x, y = load_breast_cancer(return_X_y=True)
    state = torch.random.get_rng_state()
    EnsembleClassifier(TWO, **{**SMALL, "epochs": 2}).fit(x, y).predict(x)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_network_of_your_own() -> None:
    x, y = load_diabetes(return_X_y=True)

    def linear(numbers: int, sizes: Any, outputs: int) -> torch.nn.Module:
        return torch.nn.Linear(numbers + len(sizes), outputs)

    model = EnsembleRegressor(mt.Deep(members=2), network=linear, **SMALL).fit(x, y)
    assert isinstance(model.ensemble_.member(0), torch.nn.Linear)


def test_dropout_comes_behind_each_relu() -> None:
    kinds = [type(part).__name__ for part in Tabular(3, [4], 2, (8, 8), 0.1).body.layers]
    assert kinds == ["Linear", "ReLU", "Dropout", "Linear", "ReLU", "Dropout", "Linear"]
