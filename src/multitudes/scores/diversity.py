"""Diversity: members that answer alike are no ensemble.

    disagreement    how often two members give different labels, over all pairs
    kl_diversity    1 / M(M−1) Σ_{i≠j} KL(p_i ‖ p_j), over all ordered pairs

both 0 for equal members (section 3 of the MIMO paper; its Table 1 takes them over all pairs).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from multitudes.prediction.uncertainty import mixture


def kl(probs: Tensor, log_probs: Tensor) -> Tensor:
    """The mean KL divergence between two members, for each example: ``[M, N, K]`` → ``[N]``

    Σ_{i,j} KL(p_i ‖ p_j) = M Σ_i Σ_k p_i log p_i − M² Σ_k p̄ L̄ with L̄ the mean of log p, so that pairs need not be gone
    through. What is ruled out counts as the smallest number there is.
    """
    logs = finite(log_probs)
    return kl_of(mixture((probs * logs).sum(-1)), mixture(probs), logs)


def finite(log_probs: Tensor) -> Tensor:
    """The same with the log of the smallest number for that of 0; what is only improbable stays as it is."""
    return log_probs.masked_fill(log_probs == -math.inf, math.log(torch.finfo(log_probs.dtype).tiny))


def kl_of(negentropy: Tensor, mean: Tensor, log_probs: Tensor) -> Tensor:
    """The same from what is known already: the members' mean −H(p_m), ``[N]``, and the mixture, ``[N, K]``."""
    members = len(log_probs)
    if members == 1:
        return torch.zeros_like(negentropy)
    cross = (mean * mixture(log_probs)).sum(-1)
    return (negentropy - cross).clamp_(min=0) * (members / (members - 1))


def matrix(labels: Tensor) -> Tensor:
    """How often members i and j give different labels: ``[M, N]`` → ``[M, M]``"""
    members = labels.flatten(1)
    return torch.stack([(members != one).double().mean(1) for one in members])
