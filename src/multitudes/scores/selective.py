"""Selective prediction: how many errors remain if only the most confident predictions are kept?

Geifman, El-Yaniv, "Selective Classification for Deep Neural Networks", NeurIPS 2017, https://arxiv.org/abs/1705.08500

Coverage is the share of examples that are answered, risk the share of errors among them. Examples of equal confidence come in
any order, and count with the errors to be expected then.
"""

from __future__ import annotations

import torch
from torch import Tensor

from multitudes.errors import InputError


def risk_coverage(confidence: Tensor, correct: Tensor) -> tuple[Tensor, Tensor]:
    """Coverages ``[N]`` = 1/N … 1, and the risk at each, for confidences ``[N]`` and whether they came true ``[N]``."""
    if confidence.shape != correct.shape or confidence.ndim != 1:
        raise InputError(f"confidence and correct must be [N] both: {list(confidence.shape)} and {list(correct.shape)}")
    if not len(confidence):
        raise InputError("there are no examples to choose from")
    if bool(confidence.isnan().any()):
        raise InputError("a confidence is NaN")
    order = confidence.cpu().argsort(descending=True)
    confidence, wrong = confidence.cpu()[order], 1 - correct.cpu().double()[order]
    _, group = confidence.unique_consecutive(return_inverse=True)
    wrong = (torch.bincount(group, wrong) / torch.bincount(group))[group]
    answered = torch.arange(1, len(wrong) + 1, dtype=torch.float64)
    return answered / len(wrong), wrong.cumsum(0) / answered


def aurc(confidence: Tensor, correct: Tensor) -> float:
    """Area under the risk–coverage curve, the mean risk over coverages 1/N … 1; 0 is best."""
    return float(risk_coverage(confidence, correct)[1].mean())


def threshold_for(confidence: Tensor, correct: Tensor, error: float | None, coverage: float | None) -> float:
    """The confidence from which on to answer: as often as an error allows, or as a coverage asks; infinite for never."""
    covered, risk = risk_coverage(confidence, correct)
    confidence = confidence.cpu().sort(descending=True).values
    last = torch.cat([confidence[1:] != confidence[:-1], torch.ones(1, dtype=torch.bool)])  # equal ones come together
    if error is not None:
        fits = (last & (risk <= error + 1e-12)).nonzero().flatten()
        return float(confidence[fits[-1]]) if len(fits) else float("inf")
    assert coverage is not None
    return float(confidence[(last & (covered >= coverage - 1e-12)).nonzero().flatten()[0]])
