"""Diversity: how much members' predictions differ.

    disagreement    share of examples on which two members predict different labels, averaged over pairs of members
    kl_diversity    1 / M(M−1) Σ_{i≠j} KL(p_i ‖ p_j), averaged over examples

Both are 0 for equal members. They are those of the MIMO paper, §3.2 and Fig. 4, which average over all pairs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from multitudes.prediction.uncertainty import mixture


def kl(probs: Tensor, log_probs: Tensor) -> Tensor:
    """Returns the KL divergence of each example, averaged over ordered pairs of members: ``[M, N, K]`` → ``[N]``

    Higher is more diverse. Computed without a loop over pairs: Σ_{i,j} KL(p_i ‖ p_j) = M Σ_i Σ_k p_i log p_i − M² Σ_k p̄ L̄,
    with L̄ the mean of log p. A probability of 0 counts as the smallest positive number, so that the result is finite.
    """
    logs = finite(log_probs)
    return kl_of(mixture((probs * logs).sum(-1)), mixture(probs), logs)


def finite(log_probs: Tensor) -> Tensor:
    """Replaces −∞ by the log of the smallest positive number; other log probabilities do not change."""
    return log_probs.masked_fill(log_probs == -math.inf, math.log(torch.finfo(log_probs.dtype).tiny))


def kl_of(negentropy: Tensor, mean: Tensor, log_probs: Tensor) -> Tensor:
    """Returns `kl` from the mean of −H(p_m) over members ``[N]``, the mixture ``[N, K]`` and finite log p ``[M, N, K]``."""
    members = len(log_probs)
    if members == 1:
        return torch.zeros_like(negentropy)
    cross = (mean * mixture(log_probs)).sum(-1)
    return (negentropy - cross).clamp_(min=0) * (members / (members - 1))


def matrix(labels: Tensor) -> Tensor:
    """Returns the share of examples on which members i and j predict different labels: ``[M, N]`` → ``[M, M]``"""
    members = labels.flatten(1)
    return torch.stack([(members != one).double().mean(1) for one in members])
