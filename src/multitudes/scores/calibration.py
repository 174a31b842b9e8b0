"""Calibration: does a confidence of 80 % come true in 80 % of cases?

Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks", ICML 2017, https://arxiv.org/abs/1706.04599

Examples are binned by confidence, and each bin's accuracy is held against its mean confidence:

    ECE = Σ_b n_b / N |acc_b − conf_b|        MCE = max_b |acc_b − conf_b|

Bins of equal width are half-open, (i/B, (i+1)/B]. All sums are in double precision.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from multitudes.errors import InputError


@dataclass(frozen=True)
class Bins:
    """Examples by confidence; ``[B]`` each, with NaN for the means of an empty bin."""

    lower: Tensor
    upper: Tensor
    count: Tensor
    confidence: Tensor
    accuracy: Tensor


def reliability(confidence: Tensor, correct: Tensor, bins: int = 15) -> Bins:
    """The reliability diagram: confidences ``[N]`` in bins of equal width, with how often they came true, ``[N]``."""
    confidence, correct = _checked(confidence, correct, bins)
    index = bin_of(confidence, bins)
    count = torch.bincount(index, minlength=bins).double()
    edges = torch.arange(bins + 1, dtype=torch.float64) / bins
    mean = torch.bincount(index, confidence, minlength=bins) / count
    return Bins(edges[:-1], edges[1:], count, mean, torch.bincount(index, correct, minlength=bins) / count)


def adaptive(confidence: Tensor, correct: Tensor, bins: int = 15) -> Bins:
    """The same with bins of equally many examples. Those of equal confidence count alike, in whatever order they come."""
    confidence, correct = _checked(confidence, correct, bins)
    order = confidence.argsort()
    confidence = confidence[order]
    _, group = confidence.unique_consecutive(return_inverse=True)
    size = torch.bincount(group)
    correct = (torch.bincount(group, correct[order]) / size)[group]
    share, more = divmod(len(confidence), bins)
    count = torch.full((bins,), share, dtype=torch.int64)
    count[:more] += 1
    index = torch.repeat_interleave(torch.arange(bins), count)
    ends = count.cumsum(0) - 1
    empty = count == 0
    lower = confidence[(ends - count + 1).clamp(0, len(confidence) - 1)].masked_fill(empty, torch.nan)
    upper = confidence[ends.clamp(min=0)].masked_fill(empty, torch.nan)
    mean = torch.bincount(index, confidence, minlength=bins) / count
    return Bins(lower, upper, count.double(), mean, torch.bincount(index, correct, minlength=bins) / count)


def ece(confidence: Tensor, correct: Tensor, bins: int = 15, drop: int = 0) -> float:
    """Expected calibration error; 0 is best. Bins with at most `drop` examples are left out, as if they were not there."""
    gap, count = _gaps(reliability(confidence, correct, bins), drop)
    return float((gap * count).sum() / count.sum()) if len(gap) else float("nan")


def mce(confidence: Tensor, correct: Tensor, bins: int = 15, drop: int = 0) -> float:
    """Maximum calibration error, that of the worst bin; 0 is best."""
    gap, _ = _gaps(reliability(confidence, correct, bins), drop)
    return float(gap.max()) if len(gap) else float("nan")


def ace(confidence: Tensor, correct: Tensor, bins: int = 15) -> float:
    """Adaptive calibration error: ECE over bins of equally many examples; 0 is best."""
    gap, count = _gaps(adaptive(confidence, correct, bins), 0)
    return float((gap * count).sum() / count.sum())


def classwise_bins(probs: Tensor, targets: Tensor, bins: int = 15) -> Tensor:
    """For each class and bin: examples, their summed probability, how often the class came true. ``[N, K]`` → ``[3, K, B]``

    Sums of parts are the sum of the whole.
    """
    classes = probs.shape[1]
    where = (probs * bins).ceil_().sub_(1).clamp_(0, bins - 1).int()
    where += torch.arange(classes, dtype=torch.int32, device=probs.device) * bins
    flat, cells = where.flatten(), classes * bins
    hits = torch.bincount(where.gather(1, targets[:, None]).flatten(), minlength=cells)
    found = [torch.bincount(flat, minlength=cells).double(), torch.bincount(flat, probs.flatten().double(), minlength=cells)]
    return torch.stack([*found, hits.double()]).unflatten(1, (classes, bins))


def classwise(bins: Tensor) -> float:
    """The classwise ECE of `classwise_bins`: each class's ECE of its own probability, averaged over classes; 0 is best.

    Kull et al., "Beyond temperature scaling", NeurIPS 2019, https://arxiv.org/abs/1910.12656
    """
    count, total, hits = bins
    return float(((total - hits).abs().sum(1) / count.sum(1)).mean())


def classwise_ece(probs: Tensor, targets: Tensor, bins: int = 15) -> float:
    """The classwise expected calibration error of ``[N, K]``; 0 is best."""
    return classwise(classwise_bins(probs, targets, bins))


def bin_of(confidence: Tensor, bins: int) -> Tensor:
    """The bin of each confidence."""
    return torch.bucketize(confidence.double(), torch.arange(1, bins, dtype=torch.float64, device=confidence.device) / bins)


def _gaps(bins: Bins, drop: int) -> tuple[Tensor, Tensor]:
    kept = bins.count > drop
    return (bins.accuracy - bins.confidence).abs()[kept], bins.count[kept]


def _checked(confidence: Tensor, correct: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    if bins < 1:
        raise InputError(f"bins={bins}: at least one")
    if confidence.shape != correct.shape or confidence.ndim != 1:
        raise InputError(f"confidence and correct must be [N] both: {list(confidence.shape)} and {list(correct.shape)}")
    if not len(confidence):
        raise InputError("there are no examples to be calibrated on")
    confidence, correct = confidence.double().cpu(), correct.double().cpu()
    if not bool(((confidence >= -1e-6) & (confidence <= 1 + 1e-6)).all()):
        raise InputError("a confidence lies outside of 0 to 1, or is NaN")
    return confidence, correct
