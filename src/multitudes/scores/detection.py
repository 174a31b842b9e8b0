"""Detection: does a score tell what is out of distribution from what is not?

A score is larger for what is more out of distribution, and out of distribution is what is to be detected: the positive. The
other way round, `detection.aupr(-score, ~ood)`. Equal scores are told apart by nobody: curves step over them at once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from multitudes.errors import InputError


class Curve(NamedTuple):
    """A point for each threshold, from the strictest: how many are found so far, of either kind."""

    found: Tensor
    """Out of distribution and found so."""
    false: Tensor
    """In distribution, and taken for the other."""
    threshold: Tensor


def curve(score: Tensor, ood: Tensor) -> Curve:
    """What thresholds on a score ``[N]`` find; `ood` ``[N]`` says which are out of distribution."""
    score, ood = _checked(score, ood)
    order = score.argsort(descending=True)
    score, ood = score[order], ood[order]
    last = torch.cat([score[1:] != score[:-1], torch.ones(1, dtype=torch.bool)])
    found = ood.long().cumsum(0)[last]
    false = torch.arange(1, len(score) + 1)[last] - found
    return Curve(found.double(), false.double(), score[last])


def roc(score: Tensor, ood: Tensor) -> tuple[Tensor, Tensor]:
    """False positive rates and true positive rates, from (0, 0) to (1, 1)."""
    found, false, _ = curve(score, ood)
    zero = torch.zeros(1, dtype=torch.float64)
    return torch.cat([zero, false / false[-1]]), torch.cat([zero, found / found[-1]])


def auroc(score: Tensor, ood: Tensor) -> float:
    """Area under the ROC: how often of two examples, one of each kind, the right one has the larger score; 1 is best."""
    fpr, tpr = roc(score, ood)
    return float(torch.trapezoid(tpr, fpr))


def aupr(score: Tensor, ood: Tensor) -> float:
    """Average precision: Σ (recall_t − recall_{t−1}) precision_t over thresholds; 1 is best, the share of positives chance."""
    found, false, _ = curve(score, ood)
    recall = found / found[-1]
    gained = recall.diff(prepend=torch.zeros(1, dtype=torch.float64))
    return float((gained * found / (found + false)).sum())


def fpr_at(score: Tensor, ood: Tensor, recall: float = 0.95) -> float:
    """The false positive rate at the strictest threshold that finds at least 95 % of the positives; 0 is best."""
    found, false, _ = curve(score, ood)
    first = int((found >= recall * found[-1] - 1e-9).double().argmax())
    return float(false[first] / false[-1])


def _checked(score: Tensor, ood: Tensor) -> tuple[Tensor, Tensor]:
    if score.shape != ood.shape or score.ndim != 1:
        raise InputError(f"a score and what it should tell must be [N] both: {list(score.shape)} and {list(ood.shape)}")
    score, ood = score.double().cpu(), ood.cpu().bool()
    if bool(score.isnan().any()):
        raise InputError("a score is NaN")
    if not bool(ood.any()) or bool(ood.all()):
        raise InputError(f"there must be examples of both kinds, and {int(ood.sum())} of {len(ood)} are out of distribution")
    return score, ood
