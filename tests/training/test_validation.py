"""What an epoch is worth, and which was the best: of the ensemble, or of each member."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import multitudes as mt
from multitudes.training.validation import best_by, selection_score, validate

Y = torch.tensor([0, 1, 1, 0])


def said(*rights: int) -> mt.Prediction:
    """A prediction whose members have so many of the four right."""
    logits = torch.stack([torch.where(torch.arange(4)[:, None] < right, 4.0, -4.0) * torch.eye(2)[Y] for right in rights])
    return mt.Prediction(logits=logits, targets=Y)


def test_scores_of_an_epoch() -> None:
    """Accuracy and NLL of the mixture, and each member's accuracy; of a regression, RMSE and density."""
    found, each = validate(said(4, 2))
    assert found["val_accuracy"] == mt.score(said(4, 2))["accuracy"]
    assert found["val_nll"] == pytest.approx(mt.score(said(4, 2))["nll"])
    assert each.tolist() == [1.0, 0.5]
    assert selection_score(found) == found["val_accuracy"]
    numbers = mt.Prediction(
        mean=torch.tensor([[1.0, 2.0], [1.0, 4.0]]), variance=torch.ones(2, 2), targets=torch.tensor([1.0, 2.0])
    )
    found, each = validate(numbers)
    assert found["val_rmse"] == pytest.approx(0.5**0.5)
    assert found["val_lpd"] == pytest.approx(mt.score(numbers)["lpd"])
    assert each.tolist() == [0.0, -2.0]
    assert selection_score(found) == -found["val_rmse"]


def filled(value: float, method: mt.Method | None = None) -> mt.Ensemble:
    """Two members with these weights."""
    ens = mt.ensemble(nn.Linear(3, 2), method or mt.Deep(members=2), torch.randn(2, 3), seed=0)
    with torch.no_grad():
        for p in ens.parameters():
            p.fill_(value)
    return ens


def test_the_best_of_the_ensemble() -> None:
    """The first of equal ones; weights are copied."""
    best = best_by(filled(0), "ensemble")
    assert best.update(filled(1), 1, {"val_accuracy": 0.5}, torch.zeros(2))
    assert not best.update(filled(2), 2, {"val_accuracy": 0.5}, torch.ones(2))
    assert best.update(filled(3), 3, {"val_accuracy": 0.6}, torch.zeros(2))
    assert not best.update(filled(4), 4, {"val_accuracy": 0.1}, torch.zeros(2))
    assert best.epoch == 3
    assert best.state["weight"].unique().tolist() == [3]


def test_the_best_of_each_member() -> None:
    """Each at its own epoch."""
    best = best_by(filled(0), "members")
    assert best.update(filled(1), 1, {"val_accuracy": 0.5}, torch.tensor([0.5, 0.2]))
    assert best.update(filled(2), 2, {"val_accuracy": 0.1}, torch.tensor([0.4, 0.3]))
    assert best.state["weight"][0].unique().tolist() == [1]
    assert best.state["weight"][1].unique().tolist() == [2]
    assert best.value == pytest.approx([0.5, 0.3])


def test_members_that_share_have_one_best_epoch() -> None:
    with pytest.raises(mt.InputError, match="BatchEnsemble shares weight"):
        best_by(filled(0, mt.BatchEnsemble(members=2)), "members")
