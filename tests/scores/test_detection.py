"""Detection against scikit-learn, with ties and in both orientations."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc, binary_average_precision

from multitudes.scores import detection


def drawn(inside: int, outside: int, levels: int | None = None, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Scores, larger for OOD examples on average, rounded to so many levels, and the OOD mask, in random order."""
    generator = torch.Generator().manual_seed(seed)
    ood = torch.arange(inside + outside) >= inside
    score = torch.randn(len(ood), dtype=torch.float64, generator=generator) + ood
    if levels is not None:
        score = (score * levels / 4).round()
    order = torch.randperm(len(ood), generator=generator)
    return score[order], ood[order]


SETS = {
    "random": drawn(200, 100),
    "few of one kind": drawn(300, 3, seed=1),
    "ties": drawn(200, 100, levels=4, seed=2),
    "many ties": drawn(50, 80, levels=1, seed=3),
    "all alike": (torch.zeros(10, dtype=torch.float64), torch.arange(10) >= 6),
    "apart": (torch.arange(10.0, dtype=torch.float64), torch.arange(10) >= 6),
    "the wrong way round": (-torch.arange(10.0, dtype=torch.float64), torch.arange(10) >= 6),
    "one of each": (torch.tensor([0.3, 0.1]), torch.tensor([False, True])),
    "far from zero": (drawn(60, 40, seed=4)[0] * 1e-9 + 1e4, drawn(60, 40, seed=4)[1]),
}


def fpr_at(score: Tensor, ood: Tensor, recall: float = 0.95) -> float:
    """The false positive rate at which scikit-learn's curve first reaches the recall."""
    fpr, tpr, _ = roc_curve(ood.numpy(), score.numpy(), drop_intermediate=False)
    return float(fpr[np.flatnonzero(tpr >= recall - 1e-12)[0]])


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", SETS)
def test_as_scikit_learn_has_it(name: str, turned: bool) -> None:
    """With OOD as the positive class, and with in-distribution."""
    score, ood = SETS[name]
    score, ood = (-score, ~ood) if turned else (score, ood)
    assert detection.auroc(score, ood) == pytest.approx(roc_auc_score(ood.numpy(), score.numpy()), abs=1e-9)
    assert detection.aupr(score, ood) == pytest.approx(average_precision_score(ood.numpy(), score.numpy()), abs=1e-9)
    assert detection.fpr_at(score, ood) == pytest.approx(fpr_at(score, ood), abs=1e-9)
    assert detection.fpr_at(score, ood, 0.5) == pytest.approx(fpr_at(score, ood, 0.5), abs=1e-9)


@pytest.mark.parametrize("name", ["random", "few of one kind", "ties", "many ties"])
def test_as_torchmetrics_has_it(name: str) -> None:
    """Scores are scaled to 0 … 1: torchmetrics takes others for logits, and its sigmoid rounds large ones to 1."""
    score, ood = SETS[name]
    score = (score - score.min()) / (score.max() - score.min())
    assert detection.auroc(score, ood) == pytest.approx(float(binary_auroc(score, ood.long())), abs=1e-6)
    assert detection.aupr(score, ood) == pytest.approx(float(binary_average_precision(score, ood.long())), abs=1e-6)


@pytest.mark.parametrize("name", SETS)
def test_the_roc_is_that_of_scikit_learn(name: str) -> None:
    """The curves agree point by point, with one point for equal scores."""
    score, ood = SETS[name]
    fpr, tpr = detection.roc(score, ood)
    expected = roc_curve(ood.numpy(), score.numpy(), drop_intermediate=False)
    np.testing.assert_allclose(fpr.numpy(), expected[0], atol=1e-12)
    np.testing.assert_allclose(tpr.numpy(), expected[1], atol=1e-12)
    np.testing.assert_array_equal(detection.curve(score, ood).threshold.numpy(), expected[2][1:])


def test_fpr_at_a_recall_that_is_met_exactly() -> None:
    """19 of 20 are 95 %, and 55 of 100 are 55 %, though 0.55 · 100 is rounded to more than 55."""
    ood = torch.arange(40) < 20
    score = torch.arange(40, 0, -1).double()
    score[19] = -1.0  # the last of what is out lies below all
    assert detection.fpr_at(score, ood) == 0
    assert detection.fpr_at(score, ood, 0.96) == 1
    assert 0.55 * 100 > 55
    known = torch.arange(200) % 2 == 0
    score = torch.where(known, 0.0, torch.where(torch.arange(200) < 110, 1.0, -1.0))
    assert detection.fpr_at(score, ~known, 0.55) == 0


@settings(max_examples=40)
@given(
    inside=st.lists(st.integers(-3, 3), min_size=1, max_size=15), outside=st.lists(st.integers(-3, 3), min_size=1, max_size=15)
)
def test_auroc_counts_pairs(inside: list[int], outside: list[int]) -> None:
    """AUROC is the share of pairs in which the OOD example has the larger score; ties count half."""
    score = torch.tensor(inside + outside).double()
    ood = torch.arange(len(score)) >= len(inside)
    won = sum((b > a) + (b == a) / 2 for a in inside for b in outside) / (len(inside) * len(outside))
    assert detection.auroc(score, ood) == pytest.approx(won)
    assert detection.auroc(-score, ood) == pytest.approx(1 - won)
    assert detection.auroc(-score, ~ood) == pytest.approx(won)


@settings(max_examples=30)
@given(inside=st.integers(1, 30), outside=st.integers(1, 30), levels=st.integers(1, 9), seed=st.integers(0, 2**31))
def test_ranks_are_all_that_counts(inside: int, outside: int, levels: int, seed: int) -> None:
    """Scores are between 0 and 1, and equal for permuted rows and increasing functions of the score."""
    score, ood = drawn(inside, outside, levels, seed)
    order = torch.randperm(len(score), generator=torch.Generator().manual_seed(seed))
    for rule in (detection.auroc, detection.aupr, detection.fpr_at):
        value = rule(score, ood)
        assert 0 <= value <= 1
        assert rule(score[order], ood[order]) == pytest.approx(value)
        assert rule((score / 3).exp() * 5 - 7, ood) == pytest.approx(value)


def test_infinite_scores_are_the_largest() -> None:
    """Infinite scores rank above and below all others."""
    inf = float("inf")
    score, ood = torch.tensor([0.0, -inf, inf, inf, 1.0]), torch.tensor([False, False, True, False, True])
    finite = torch.tensor([0.0, -9.0, 9.0, 9.0, 1.0])
    for rule in (detection.auroc, detection.aupr, detection.fpr_at):
        assert rule(score, ood) == rule(finite, ood)
