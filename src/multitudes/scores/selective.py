"""Selective prediction: the error rate among the most confident predictions.

Geifman, El-Yaniv, "Selective Classification for Deep Neural Networks", NeurIPS 2017, https://arxiv.org/abs/1705.08500

Coverage is the share of examples that are answered, risk the share of errors among them. Examples of equal confidence have no
order: each counts with their mean error.
"""

from __future__ import annotations

import torch
from torch import Tensor

from multitudes.errors import InputError


def risk_coverage(confidence: Tensor, correct: Tensor) -> tuple[Tensor, Tensor]:
    """Returns coverages 1/N … 1 and the risk at each. Shape: confidence ``[N]``, correct ``[N]`` → ``[N]``, ``[N]``"""
    if confidence.shape != correct.shape or confidence.ndim != 1:
        raise InputError(f"confidence and correct must both be [N], not {list(confidence.shape)} and {list(correct.shape)}")
    if not len(confidence):
        raise InputError("a risk-coverage curve needs at least one example, but confidence= is empty")
    if bool(confidence.isnan().any()):
        raise InputError("confidence has a NaN: remove these examples")
    order = confidence.cpu().argsort(descending=True)
    confidence, wrong = confidence.cpu()[order], 1 - correct.cpu().double()[order]
    _, group = confidence.unique_consecutive(return_inverse=True)
    wrong = (torch.bincount(group, wrong) / torch.bincount(group))[group]
    answered = torch.arange(1, len(wrong) + 1, dtype=torch.float64)
    return answered / len(wrong), wrong.cumsum(0) / answered


def aurc(confidence: Tensor, correct: Tensor) -> float:
    """Returns the area under the risk-coverage curve, the mean risk over coverages 1/N … 1; lower is better, 0 is best."""
    return float(risk_coverage(confidence, correct)[1].mean())


def threshold_for(confidence: Tensor, correct: Tensor, error: float | None, coverage: float | None) -> float:
    """Returns the confidence threshold for a maximal error, or for a minimal coverage. Shape: ``[N]``, ``[N]``

    error     returns the lowest threshold with at most this risk; ∞ if there is none
    coverage  returns the highest threshold at which at least this share of examples is answered
    """
    covered, risk = risk_coverage(confidence, correct)
    confidence = confidence.cpu().sort(descending=True).values
    if error is not None:
        last = torch.cat(
            [confidence[1:] != confidence[:-1], torch.ones(1, dtype=torch.bool)]
        )  # equal ones are answered together
        allowed = (last & (risk <= error + 1e-12)).nonzero().flatten()
        return float(confidence[allowed[-1]]) if len(allowed) else float("inf")
    assert coverage is not None
    return float(confidence[(covered >= coverage - 1e-12).nonzero().flatten()[0]])
