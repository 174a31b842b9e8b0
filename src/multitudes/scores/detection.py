"""Detection: how well a score separates out-of-distribution (OOD) from in-distribution examples.

A score is larger for examples that look more OOD, and OOD is the positive class. For in-distribution as the positive class,
call `detection.aupr(-score, ~is_ood)`. Examples of equal score share one point of every curve.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from multitudes.errors import InputError


class Curve(NamedTuple):
    """Numbers of true and false positives at each distinct threshold, from the highest."""

    found: Tensor
    """True positives: OOD examples with a score at or above the threshold."""
    false: Tensor
    """False positives: in-distribution examples with a score at or above the threshold."""
    threshold: Tensor
    """The thresholds, in falling order."""


def curve(score: Tensor, is_ood: Tensor) -> Curve:
    """Counts true and false positives at every threshold of a score ``[N]``; `is_ood` ``[N]`` marks the OOD examples."""
    score, is_ood = _checked(score, is_ood)
    order = score.argsort(descending=True)
    score, is_ood = score[order], is_ood[order]
    last = torch.cat([score[1:] != score[:-1], torch.ones(1, dtype=torch.bool)])
    found = is_ood.long().cumsum(0)[last]
    false = torch.arange(1, len(score) + 1)[last] - found
    return Curve(found.double(), false.double(), score[last])


def roc(score: Tensor, is_ood: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the false and true positive rates of the ROC curve, from (0, 0) to (1, 1). Shape: ``[N]``, ``[N]``"""
    found, false, _ = curve(score, is_ood)
    zero = torch.zeros(1, dtype=torch.float64)
    return torch.cat([zero, false / false[-1]]), torch.cat([zero, found / found[-1]])


def auroc(score: Tensor, is_ood: Tensor) -> float:
    """Returns the area under the ROC curve; higher is better, 1 is best and 0.5 is chance. Shape: ``[N]``, ``[N]``

    It is the probability that a random OOD example has a higher score than a random in-distribution one; ties count half.
    """
    fpr, tpr = roc(score, is_ood)
    return float(torch.trapezoid(tpr, fpr))


def aupr(score: Tensor, is_ood: Tensor) -> float:
    """Returns the average precision, Σ_t (recall_t − recall_{t−1}) precision_t over thresholds. Shape: ``[N]``, ``[N]``

    Higher is better: 1 is best, and the share of positives is chance.
    """
    found, false, _ = curve(score, is_ood)
    recall = found / found[-1]
    gained = recall.diff(prepend=torch.zeros(1, dtype=torch.float64))
    return float((gained * found / (found + false)).sum())


def ranking(score: Tensor, positive: Tensor) -> tuple[float, float]:
    """Returns AUROC and average precision of a score that ranks positive above other examples. Shape: ``[N]``, ``[N]``

    Both are NaN without positive or without other examples, and otherwise those of `auroc` and `aupr`. Only positive examples
    are sorted: fast for many classes, of which each has few examples.
    """
    threshold, size = score[positive].unique(return_counts=True)
    others = score[~positive]
    if not len(threshold) or not len(others):
        return float("nan"), float("nan")
    reached = torch.searchsorted(threshold, others, right=True)  # the number of thresholds that each score reaches
    equal = threshold[(reached - 1).clamp(min=0)] == others
    false, above = (_at_least(numbers, len(threshold)) for numbers in (reached, reached - equal.long()))
    found = size.flip(0).cumsum(0).flip(0)
    auroc = (size * (len(others) - (false + above) / 2)).sum() / (size.sum() * len(others))
    return float(auroc), float((size * found / (found + false)).sum() / size.sum())


def _at_least(reached: Tensor, thresholds: int) -> Tensor:
    """Counts for each threshold the scores that reach it, from the number of thresholds that each score reaches."""
    return torch.bincount(reached, minlength=thresholds + 1).flip(0).cumsum(0).flip(0)[1:].double()


def fpr_at(score: Tensor, is_ood: Tensor, recall: float = 0.95) -> float:
    """Returns the false positive rate at the highest threshold with at least this recall; lower is better, 0 is best.

    Shape: ``[N]``, ``[N]``
    """
    found, false, _ = curve(score, is_ood)
    first = int((found >= recall * found[-1] - 1e-9).double().argmax())
    return float(false[first] / false[-1])


def _checked(score: Tensor, is_ood: Tensor) -> tuple[Tensor, Tensor]:
    if score.shape != is_ood.shape or score.ndim != 1:
        raise InputError(f"score and is_ood must both be [N], not {list(score.shape)} and {list(is_ood.shape)}")
    score, is_ood = score.double().cpu(), is_ood.cpu().bool()
    if bool(score.isnan().any()):
        raise InputError("score has a NaN: remove the examples without a score")
    if not bool(is_ood.any()) or bool(is_ood.all()):
        raise InputError(
            f"detection needs both OOD and in-distribution examples, but is_ood= marks "
            f"{int(is_ood.sum())} of {len(is_ood)} as OOD"
        )
    return score, is_ood
