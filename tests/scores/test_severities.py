"""Scores by severity: the mean over corruptions of sets that were scored alone, never of their pool."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import multitudes as mt
from multitudes.scores import mean_over_corruptions


def claimed(confidence: float, right: int, rows: int = 10) -> mt.Prediction:
    """Two equal members that are so sure of class 0, which is right for the first `right` of the rows."""
    probs = torch.tensor([confidence, 1 - confidence], dtype=torch.float64).repeat(1, rows, 1)
    return mt.Prediction(probs=probs, targets=(torch.arange(rows) >= right).long())


def test_opposite_errors_do_not_cancel() -> None:
    """Two sets are off by 0.2 in opposite directions: the mean of their ECE is 0.2, while that of their pool is 0."""
    over, under = claimed(0.8, 6), claimed(0.8, 10)
    found = mean_over_corruptions({("fog", 1): over, ("snow", 1): under})
    assert found[1]["ece"] == pytest.approx(0.2)
    assert mt.score(mt.Prediction.cat([over, under]))["ece"] == pytest.approx(0, abs=1e-12)
    assert found[1]["accuracy"] == pytest.approx(0.8)


def drawn(seed: int, rows: int) -> tuple[mt.Prediction, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, rows, 4, generator=generator)
    return mt.Prediction(logits=logits), torch.randint(4, (rows,), generator=generator)


def test_each_severity_by_itself() -> None:
    """Every set counts alike, however large; severities come in order, from a dict or from items one after the other."""
    sets = {(name, severity): drawn(10 * n + severity, 20 + 30 * n) for severity in (5, 2) for n, name in enumerate("abc")}
    found = mean_over_corruptions(sets, bins=7)
    assert list(found) == [2, 5]
    for severity in (2, 5):
        for key in ("accuracy", "nll", "ece", "brier"):
            alone = [mt.score(*sets[name, severity], bins=7)[key] for name in "abc"]
            assert found[severity][key] == pytest.approx(sum(alone) / 3)
    again = mean_over_corruptions(iter(sets.items()), bins=7)
    assert all(again[severity] == pytest.approx(found[severity], nan_ok=True) for severity in (2, 5))


def test_regressions_have_means_too() -> None:
    """The RMSE is the mean of the sets' RMSE."""
    one, two = (mt.Prediction(mean=torch.full((1, 4), error), targets=torch.zeros(4)) for error in (1.0, 3.0))
    assert mean_over_corruptions({("a", 1): one, ("b", 1): two})[1]["rmse"] == pytest.approx(2)


def test_sets_that_cannot_be_averaged() -> None:
    """Severities with other corruptions, and a set given twice, are refused by name."""
    pred = claimed(0.8, 6)
    with pytest.raises(mt.InputError, match="snow at 2"):
        mean_over_corruptions({("fog", 1): pred, ("snow", 1): pred, ("fog", 2): pred})
    with pytest.raises(mt.InputError, match="'fog' at severity 1 twice"):
        mean_over_corruptions([(("fog", 1), pred), (("fog", 1), pred)])
    assert mean_over_corruptions({}) == {}
