"""Shift: what remains of a score when the data changes.

Hendrycks, Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations", ICLR 2019,
https://arxiv.org/abs/1903.12261

With E_c the error under corruption c, averaged over severities, and that of a baseline,

    mCE  = mean over c of E_c / E_c^baseline
    rmCE = mean over c of (E_c − E_clean) / (E_c^baseline − E_clean^baseline)

over the 15 standard corruptions; the other four are reported apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from multitudes.data.corruptions.published import STANDARD
from multitudes.errors import InputError


class Errors(NamedTuple):
    """A baseline's errors: clean, and for each corruption the mean over severities."""

    clean: float
    corrupted: Mapping[str, float]
    severities: frozenset[int] = frozenset(range(1, 6))


ALEXNET = Errors(
    0.4348,
    dict(zip(STANDARD, (
        0.886428, 0.894468, 0.922640, 0.819880, 0.826268, 0.785948, 0.798360, 0.866816, 0.826572, 0.819324, 0.564592, 0.853204,
        0.646056, 0.717840, 0.606500,
    ), strict=True)),
)  # fmt: skip
"""AlexNet on ImageNet and ImageNet-C, the baseline of the corruptions' authors."""

BASELINES = {"alexnet": ALEXNET}


def mean_corruption_error(errors: Errors, baseline: Errors) -> tuple[float, float]:
    """mCE and rmCE over the standard corruptions, as fractions; 1 is the baseline, less is better."""
    missing = [name for name in STANDARD if name not in errors.corrupted or name not in baseline.corrupted]
    if missing:
        raise InputError(f"mCE is over the 15 standard corruptions, and there is no {', '.join(missing)}")
    if errors.severities != baseline.severities:
        shown = [", ".join(map(str, sorted(one.severities))) for one in (errors, baseline)]
        raise InputError(f"the run has severities {shown[0]}, and the baseline {shown[1]}: only equal ones can be compared")
    own = torch.tensor([errors.corrupted[name] for name in STANDARD], dtype=torch.float64)
    base = torch.tensor([baseline.corrupted[name] for name in STANDARD], dtype=torch.float64)
    if bool((base == 0).any()) or bool((base == baseline.clean).any()):
        at = STANDARD[int(((base == 0) | (base == baseline.clean)).nonzero()[0])]
        raise InputError(f"the baseline's error under {at} is 0 or that without corruption: nothing can be held against it")
    return float((own / base).mean()), float(((own - errors.clean) / (base - baseline.clean)).mean())


def stability(correct: Tensor, anchor: Tensor) -> float:
    """How often all frames around an anchor are right, the worst of them counting: ``[N]``, ``[N]``; 1 is best.

    `anchor` says of each frame which anchor it lies around; the anchor itself is one of its frames.
    """
    if correct.shape != anchor.shape or correct.ndim != 1 or not len(correct):
        raise InputError(f"frames and their anchors must be [N] both: {list(correct.shape)} and {list(anchor.shape)}")
    _, group = anchor.unique(return_inverse=True)
    worst = torch.ones(int(group.max()) + 1, dtype=torch.float64)
    return float(worst.scatter_reduce(0, group, correct.double(), "amin").mean())
