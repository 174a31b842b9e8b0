"""Scores over seeds and splits: mean, standard deviation and standard error against scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch

import multitudes as mt
from multitudes.scores import over_runs
from multitudes.scores.runs import spread


def test_the_standard_error_is_scipys() -> None:
    """The deviation has n − 1 in its denominator, and the error is smaller by √n."""
    values = torch.randn(20, dtype=torch.float64).tolist()
    found = spread(values)
    assert found == pytest.approx((np.mean(values), np.std(values, ddof=1), scipy.stats.sem(values), 20))
    assert str(found) == f"{np.mean(values):.4f} ± {scipy.stats.sem(values):.4f}"


def test_scores_of_several_splits() -> None:
    """Every score that all runs have, by name; others are left out."""
    runs = [mt.score(mt.Prediction(mean=torch.full((1, 4), error)), torch.zeros(4)) for error in (1.0, 2.0, 6.0)]
    found = over_runs(runs)
    assert list(found) == list(runs[0])
    assert found["rmse"] == pytest.approx((3, math.sqrt(7), math.sqrt(7 / 3), 3))
    assert list(over_runs([runs[0], {"rmse": 3.0}])) == ["rmse"]


def test_one_run_and_infinite_runs_have_no_spread() -> None:
    """One run has a mean alone; an infinite score makes the mean infinite and the spread undefined, not wrong."""
    one = spread([0.5])
    assert one.mean == 0.5
    assert math.isnan(one.deviation)
    assert math.isnan(one.error)
    endless = spread([1.0, math.inf])
    assert endless.mean == math.inf
    assert math.isnan(endless.error)


def test_runs_that_are_none() -> None:
    """An empty list, and one run without its list, are refused."""
    for wrong in ([], {"nll": 1.0}):
        with pytest.raises(mt.InputError, match="runs must be a list"):
            over_runs(wrong)  # type: ignore[arg-type]
    with pytest.raises(mt.InputError, match="values is empty"):
        spread([])
