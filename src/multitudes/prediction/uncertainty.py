"""Uncertainty: what the members' answers to one example say, together and apart.

With members' probabilities p_m and their mean p̄ over M members,

    total        H(p̄)                       the entropy of the mixture
    aleatoric    1/M Σ_m H(p_m)              what each member is unsure of by itself
    epistemic    H(p̄) − 1/M Σ_m H(p_m)      the mutual information of label and member: what they disagree about

and for Gaussians with means μ_m and variances σ²_m

    total        1/M Σ_m σ²_m + 1/M Σ_m μ_m² − μ̄²      aleatoric + epistemic
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def mixture(values: Tensor) -> Tensor:
    """The mean over members ``[M, ...]``; of equal members exactly what each of them is."""
    first = values[0]
    if len(values) == 1:
        return first
    off = values[1] - first
    for other in values[2:]:
        off += other
        off -= first
    return torch.add(first, off, alpha=1 / len(values))


def entropy(probs: Tensor) -> Tensor:
    """−Σ p log p over the last axis, in nats."""
    return torch.xlogy(probs, probs).sum(-1).neg_()


def agreement(labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """How many members are with the majority, and how many pairs of members agree: ``[M, N]`` → ``[N]``, ``[N]``"""
    members = len(labels)
    if members <= classes:
        alike = torch.stack([(labels == one).sum(0) for one in labels])  # [M, N]: how many are with member m
        return alike.amax(0), (alike.sum(0) - members) // 2
    count = labels.new_zeros(labels.shape[1], classes).scatter_add_(1, labels.T, torch.ones_like(labels.T))
    return count.amax(-1), (count * (count - 1)).sum(-1) // 2


def of_probs(probs: Tensor, mean: Tensor, labels: Tensor, shown: Tensor | None = None) -> dict[str, Tensor]:
    """What members' probabilities say of each example. Shape: ``[M, N, K]``, ``[N, K]``, ``[M, N]`` → ``[N]`` each

    `mean` is their mixture, `labels` what each member answers; `shown` stands for the mixture where that is calibrated by
    itself.
    """
    members, _, classes = probs.shape
    entropies = entropy(torch.cat([mean[None], probs]))
    confidence, label = (mean if shown is None else shown).max(-1)
    found = {
        "labels": label,
        "confidence": confidence.clamp_(0, 1),
        "entropy": entropies[0] if shown is None else entropy(shown),
        "expected_entropy": mixture(entropies[1:]),
        "mutual_information": (entropies[0] - entropies[1:]).mean(0).clamp_(min=0),
    }
    if members == 1:
        nothing = torch.zeros_like(confidence)
        return {**found, "variation_ratio": nothing, "disagreement": nothing}
    most, pairs = agreement(labels, classes)
    all_pairs = members * (members - 1) / 2
    return {**found, "variation_ratio": 1 - most.to(probs) / members, "disagreement": 1 - pairs.to(probs) / all_pairs}


def of_logits(logits: Tensor, log_probs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """What only scores before the softmax say. Shape: ``[M, N, K]``, ``[M, N, K]``, ``[M, N]`` → ``[N]`` each

    max_logit   the largest score, of the members' mean; less for what is unknown
    energy      −log Σ exp of the scores, the members' mean; more for what is unknown
    """
    top = labels[..., None]
    energies = (log_probs.gather(-1, top) - logits.gather(-1, top)).squeeze(-1)  # log p = z − log Σ exp z
    return {"max_logit": logits.mean(0).amax(-1), "energy": mixture(energies)}  # a class that is ruled out has −∞


def pooled_log_probs(log_probs: Tensor) -> Tensor:
    """The log of the mixture: ``[M, ...]`` → ``[...]``"""
    return torch.logsumexp(log_probs, 0) - math.log(log_probs.shape[0])


def log_normal(x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """The log density of N(mean, variance) at x."""
    found = -0.5 * ((x - mean) ** 2 / variance + variance.log() + math.log(2 * math.pi))
    return torch.where(variance > 0, found, torch.where(x == mean, math.inf, -math.inf).to(found))


def normal_cdf(z: Tensor) -> Tensor:
    """Φ(z)."""
    return torch.special.ndtr(z)


def quantile(level: float, mean: Tensor, variance: Tensor) -> Tensor:
    """Where the mixture of N(mean_m, variance_m), ``[M, ...]``, has this share below it, by bisection: ``[...]``"""
    mean, std = mean.double(), variance.double().sqrt()
    each = mean + std * math.sqrt(2) * torch.erfinv(torch.tensor(2 * level - 1, dtype=torch.float64))
    low, high = each.amin(0), each.amax(0)  # the mixture's lies between those of its members
    for _ in range(64):
        middle = (low + high) / 2
        off = ((middle - mean) / std).nan_to_num(nan=math.inf)  # 0 / 0: a point, and all of it is there
        below = normal_cdf(off).mean(0) < level
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2


def moments(mean: Tensor, variance: Tensor | None) -> dict[str, Tensor]:
    """Mean and both parts of the variance of the mixture, ``[M, ...]`` → ``[...]``"""
    return {
        "mean": mixture(mean),
        "aleatoric": torch.zeros_like(mean[0]) if variance is None else mixture(variance),
        "epistemic": ((mean - mixture(mean)) ** 2).mean(0),
    }
