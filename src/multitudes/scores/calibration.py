"""Calibration: whether predictions with a confidence of 80 % are right in 80 % of cases.

Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks", ICML 2017, https://arxiv.org/abs/1706.04599

Examples are binned by confidence. The gap of a bin is the difference of its accuracy and its mean confidence:

    ECE = Σ_b n_b / N |acc_b − conf_b|        MCE = max_b |acc_b − conf_b|

Bins of equal width are half-open, (i/B, (i+1)/B]; 0 belongs to the first. All sums are in double precision.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from multitudes.errors import InputError


@dataclass(frozen=True)
class Bins:
    """Examples binned by confidence; tensors ``[B]``. The mean confidence and accuracy of an empty bin are NaN."""

    lower: Tensor
    upper: Tensor
    count: Tensor
    confidence: Tensor
    accuracy: Tensor


def reliability(confidence: Tensor, correct: Tensor, bins: int = 15) -> Bins:
    """Bins confidences ``[N]`` into bins of equal width, for a reliability diagram. `correct` ``[N]`` holds 0 or 1."""
    confidence, correct = _checked(confidence, correct, bins)
    index = bin_of(confidence, bins)
    count = torch.bincount(index, minlength=bins).double()
    edges = torch.arange(bins + 1, dtype=torch.float64) / bins
    mean = torch.bincount(index, confidence, minlength=bins) / count
    return Bins(edges[:-1], edges[1:], count, mean, torch.bincount(index, correct, minlength=bins) / count)


def adaptive(confidence: Tensor, correct: Tensor, bins: int = 15) -> Bins:
    """Bins confidences ``[N]`` into bins of equally many examples. Examples of equal confidence all get their mean accuracy."""
    confidence, correct = _checked(confidence, correct, bins)
    order = confidence.argsort()
    confidence = confidence[order]
    _, group = confidence.unique_consecutive(return_inverse=True)
    size = torch.bincount(group)
    correct = (torch.bincount(group, correct[order]) / size)[group]
    size_of_bin, rest = divmod(len(confidence), bins)
    count = torch.full((bins,), size_of_bin, dtype=torch.int64)
    count[:rest] += 1
    index = torch.repeat_interleave(torch.arange(bins), count)
    ends = count.cumsum(0) - 1
    empty = count == 0
    lower = confidence[(ends - count + 1).clamp(0, len(confidence) - 1)].masked_fill(empty, torch.nan)
    upper = confidence[ends.clamp(min=0)].masked_fill(empty, torch.nan)
    mean = torch.bincount(index, confidence, minlength=bins) / count
    return Bins(lower, upper, count.double(), mean, torch.bincount(index, correct, minlength=bins) / count)


def ece(confidence: Tensor, correct: Tensor, bins: int = 15, drop: int = 0) -> float:
    """Returns the expected calibration error, Σ_b n_b / N |acc_b − conf_b|, over bins of equal width; lower is better.

    Shape: ``[N]``, ``[N]``. Bins with at most `drop` examples are left out; N is the number of examples in the other bins.
    """
    gap, count = _gaps(reliability(confidence, correct, bins), drop)
    return float((gap * count).sum() / count.sum()) if len(gap) else float("nan")


def mce(confidence: Tensor, correct: Tensor, bins: int = 15, drop: int = 0) -> float:
    """Returns the maximum calibration error, max_b |acc_b − conf_b|, over bins of equal width; lower is better.

    Shape: ``[N]``, ``[N]``. Bins with at most `drop` examples are left out.
    """
    gap, _ = _gaps(reliability(confidence, correct, bins), drop)
    return float(gap.max()) if len(gap) else float("nan")


def ace(confidence: Tensor, correct: Tensor, bins: int = 15) -> float:
    """Returns the adaptive calibration error: the ECE over bins of equally many examples; lower is better, 0 is best.

    Shape: ``[N]``, ``[N]``
    """
    gap, count = _gaps(adaptive(confidence, correct, bins), 0)
    return float((gap * count).sum() / count.sum())


def classwise_bins(probs: Tensor, targets: Tensor, bins: int = 15) -> Tensor:
    """Returns for each class and bin: number of examples, sum of their probabilities, number of examples of the class.

    Shape: ``[N, K]``, ``[N]`` → ``[3, K, B]``. The results of parts of a dataset add up to those of the whole.
    """
    classes = probs.shape[1]
    where = bin_of(probs, bins).int()
    where += torch.arange(classes, dtype=torch.int32, device=probs.device) * bins
    flat, cells = where.flatten(), classes * bins
    hits = torch.bincount(where.gather(1, targets[:, None]).flatten(), minlength=cells)
    count, total = torch.bincount(flat, minlength=cells), torch.bincount(flat, probs.flatten().double(), minlength=cells)
    return torch.stack([count.double(), total, hits.double()]).unflatten(1, (classes, bins))


def classwise(bins: Tensor) -> float:
    """Returns the classwise ECE of ``[3, K, B]`` from `classwise_bins`; lower is better, 0 is best.

    It is the ECE of each class's probability, averaged over classes: 1/K Σ_k Σ_b n_kb / N |freq_kb − prob_kb|.

    Kull et al., "Beyond temperature scaling", NeurIPS 2019, https://arxiv.org/abs/1910.12656
    """
    count, total, hits = bins
    return float(((total - hits).abs().sum(1) / count.sum(1)).mean())


def classwise_ece(probs: Tensor, targets: Tensor, bins: int = 15) -> float:
    """Returns the classwise ECE of probabilities ``[N, K]`` and labels ``[N]``; lower is better, 0 is best. See `classwise`."""
    return classwise(classwise_bins(probs, targets, bins))


def bin_of(confidence: Tensor, bins: int) -> Tensor:
    """Returns the index of each confidence's bin, 0 to bins − 1."""
    return torch.bucketize(confidence.double(), torch.arange(1, bins, dtype=torch.float64, device=confidence.device) / bins)


def _gaps(bins: Bins, drop: int) -> tuple[Tensor, Tensor]:
    kept = bins.count > drop
    return (bins.accuracy - bins.confidence).abs()[kept], bins.count[kept]


def _checked(confidence: Tensor, correct: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    if bins < 1:
        raise InputError(f"bins={bins} must be at least 1")
    if confidence.shape != correct.shape or confidence.ndim != 1:
        raise InputError(f"confidence and correct must both be [N], not {list(confidence.shape)} and {list(correct.shape)}")
    if not len(confidence):
        raise InputError("calibration errors need at least one example, but confidence= is empty")
    confidence, correct = confidence.double().cpu(), correct.double().cpu()
    if not bool(((confidence >= -1e-6) & (confidence <= 1 + 1e-6)).all()):
        raise InputError("confidence must be from 0 to 1, but has another value or a NaN: pass probabilities")
    return confidence, correct
