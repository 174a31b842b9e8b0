"""Regression: proper scores of a predicted distribution at the target.

For a mixture of M equally likely Gaussians N(μ_m, σ²_m),

    CRPS = 1/M Σ_m A(y − μ_m, σ²_m) − 1/2M² Σ_{m,n} A(μ_m − μ_n, σ²_m + σ²_n),   A(d, v) = 2 √v φ(d/√v) + d (2 Φ(d/√v) − 1)

(Grimit et al., "The continuous ranked probability score for circular variables", 2006); A(d, 0) = |d|, so the
formula also holds for members without a variance.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from multitudes.prediction.uncertainty import log_normal


def crps(targets: Tensor, mean: Tensor, variance: Tensor | None = None) -> Tensor:
    """Returns the continuous ranked probability score of each entry; lower is better, 0 is best. Formula: see the module.

    Shape: targets ``[N, ...]``, mean and variance ``[M, N, ...]`` → ``[N, ...]``
    """
    variance = torch.zeros_like(mean) if variance is None else variance
    members = mean.shape[0]
    near = _absolute(targets - mean, variance).mean(0)
    spread = torch.zeros_like(near)
    for m in range(members):
        spread += _absolute(mean[m] - mean, variance[m] + variance).sum(0)
    return near - spread / (2 * members**2)


def _absolute(distance: Tensor, variance: Tensor) -> Tensor:
    """Returns A(distance, variance) = E |X| for X ~ N(distance, variance)."""
    std = variance.sqrt()
    z = torch.where(std > 0, distance / std, distance.sign() * math.inf).nan_to_num(0.0, math.inf, -math.inf)
    density = torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    return 2 * std * density + distance * (2 * torch.special.ndtr(z) - 1)


def gaussian_nll(targets: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Returns −log N(target; mean, variance) of each entry; lower is better. Shape: ``[N, ...]`` each"""
    return -log_normal(targets, mean, variance)
