"""Shift: scores under corruptions and other distribution shifts.

Hendrycks, Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations", ICLR 2019,
https://arxiv.org/abs/1903.12261

E_c is the error under corruption c, averaged over severities; E_clean is the error on clean data:

    CE_c  = E_c / E_c^baseline                                          mCE:  their mean over c
    rCE_c = (E_c − E_clean) / (E_c^baseline − E_clean^baseline)         rmCE: their mean over c

over the 15 standard corruptions; the other four do not count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from multitudes.data.corruptions.published import SEVERITIES, STANDARD
from multitudes.errors import InputError


class Errors(NamedTuple):
    """Error rates of a run: on clean data, and under each corruption, averaged over severities."""

    clean: float
    corrupted: Mapping[str, float]
    severities: frozenset[int] = frozenset(SEVERITIES)


ALEXNET = Errors(
    0.4348,
    dict(zip(STANDARD, (
        0.886428, 0.894468, 0.922640, 0.819880, 0.826268, 0.785948, 0.798360, 0.866816, 0.826572, 0.819324, 0.564592, 0.853204,
        0.646056, 0.717840, 0.606500,
    ), strict=True)),
)  # fmt: skip
"""AlexNet on ImageNet and ImageNet-C, the baseline of Hendrycks and Dietterich."""

BASELINES = {"alexnet": ALEXNET}


class CorruptionError(NamedTuple):
    """CE and rCE of one corruption as fractions; lower is better, 1 is the baseline."""

    ce: float
    rce: float


def corruption_errors(errors: Errors, baseline: Errors) -> dict[str, CorruptionError]:
    """Returns CE and rCE of each of the standard corruptions. Formulas: see the module."""
    missing = [name for name in STANDARD if name not in errors.corrupted or name not in baseline.corrupted]
    if missing:
        raise InputError(f"mCE needs all 15 standard corruptions in shift= and in the baseline: {', '.join(missing)} missing")
    if errors.severities != baseline.severities:
        shown = [", ".join(map(str, sorted(one.severities))) for one in (errors, baseline)]
        raise InputError(f"mCE needs the same severities in both: the run has {shown[0]}, the baseline {shown[1]}")
    each = {}
    for name in STANDARD:
        own, base = errors.corrupted[name], baseline.corrupted[name]
        if base in (0, baseline.clean):
            raise InputError(
                f"mCE divides by the baseline's error under {name} and its increase, but one of them is 0: use another baseline"
            )
        each[name] = CorruptionError(own / base, (own - errors.clean) / (base - baseline.clean))
    return each


def mean_corruption_error(each: Mapping[str, CorruptionError]) -> CorruptionError:
    """Returns mCE and rmCE, the means of CE and rCE over corruptions; lower is better, 1 is the baseline."""
    return CorruptionError(*(math.fsum(values) / len(each) for values in zip(*each.values(), strict=True)))


def stability(correct: Tensor, anchor: Tensor) -> float:
    """Returns the share of anchors that are classified correctly with all their neighbouring frames; higher is better.

    Shape: ``[N]``, ``[N]``. `anchor` tells which anchor each frame belongs to; an anchor belongs to itself. 1 is best.
    """
    if correct.shape != anchor.shape or correct.ndim != 1 or not len(correct):
        raise InputError(
            f"stability needs one anchor per frame: correct and anchor must both be [N], not {list(correct.shape)} and "
            f"{list(anchor.shape)}"
        )
    _, group = anchor.unique(return_inverse=True)
    worst = torch.ones(int(group.max()) + 1, dtype=torch.float64)
    return float(worst.scatter_reduce(0, group, correct.double(), "amin").mean())
