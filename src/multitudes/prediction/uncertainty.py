"""Uncertainty: entropies, disagreement and moments of a mixture of M members.

With members' probabilities p_m and their mean p̄,

    total        H(p̄)                       entropy of the mixture
    aleatoric    1/M Σ_m H(p_m)              mean entropy of the members
    epistemic    H(p̄) − 1/M Σ_m H(p_m)      mutual information of label and member: their disagreement

and for Gaussians with means μ_m and variances σ²_m

    total        1/M Σ_m σ²_m + 1/M Σ_m μ_m² − μ̄²      aleatoric + epistemic
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor


def mixture(values: Tensor) -> Tensor:
    """Returns the mean over members, ``[M, ...]`` → ``[...]``. For equal members it is exactly their value."""
    first = values[0]
    if len(values) == 1:
        return first
    off = values[1] - first
    for other in values[2:]:
        off += other
        off -= first
    return torch.add(first, off, alpha=1 / len(values))


def entropy(probs: Tensor) -> Tensor:
    """Returns −Σ p log p over the last axis, in nats."""
    return torch.xlogy(probs, probs).sum(-1).neg_()


def agreement(labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Counts the members that vote for the majority label, and the pairs of members that agree.

    Shape: ``[M, N]`` → ``[N]``, ``[N]``
    """
    members = len(labels)
    if members <= classes:
        alike = torch.stack([(labels == one).sum(0) for one in labels])  # [M, N]: members that agree with member m
        return alike.amax(0), (alike.sum(0) - members) // 2
    count = labels.new_zeros(labels.shape[1], classes).scatter_add_(1, labels.T, torch.ones_like(labels.T))
    return count.amax(-1), (count * (count - 1)).sum(-1) // 2


def of_probs(probs: Tensor, mean: Tensor, labels: Tensor, shown: Tensor | None = None) -> dict[str, Tensor]:
    """Computes label, confidence and uncertainties of each example from members' probabilities.

    Shape: probs ``[M, N, K]``, mean ``[N, K]``, labels ``[M, N]`` → ``[N]`` each

    mean     the mixture of `probs`
    labels   each member's predicted class
    shown    the calibrated mixture, if there is one; label, confidence and entropy are then computed from it
    """
    members, _, classes = probs.shape
    entropies = entropy(torch.cat([mean[None], probs]))
    confidence, label = (mean if shown is None else shown).max(-1)
    statistics = {
        "labels": label,
        "confidence": confidence.clamp_(0, 1),
        "entropy": entropies[0] if shown is None else entropy(shown),
        "expected_entropy": mixture(entropies[1:]),
        "mutual_information": (entropies[0] - entropies[1:]).mean(0).clamp_(min=0),
    }
    if members == 1:
        zeros = torch.zeros_like(confidence)
        return {**statistics, "variation_ratio": zeros, "disagreement": zeros}
    most, pairs = agreement(labels, classes)
    all_pairs = members * (members - 1) / 2
    return {**statistics, "variation_ratio": 1 - most.to(probs) / members, "disagreement": 1 - pairs.to(probs) / all_pairs}


def of_logits(logits: Tensor, log_probs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Computes the two OOD scores that need logits. Shape: ``[M, N, K]``, ``[M, N, K]``, ``[M, N]`` → ``[N]`` each

    max_logit   the largest entry of the members' mean logits; smaller for out-of-distribution inputs
    energy      the members' mean of −log Σ exp logits; larger for out-of-distribution inputs
    """
    top = labels[..., None]
    energies = (log_probs.gather(-1, top) - logits.gather(-1, top)).squeeze(-1)  # log p = z − log Σ exp z; masked z are −∞
    return {"max_logit": logits.mean(0).amax(-1), "energy": mixture(energies)}


def pooled_log_probs(log_probs: Tensor) -> Tensor:
    """Returns the log of the mixture, log 1/M Σ_m exp log p_m: ``[M, ...]`` → ``[...]``"""
    return torch.logsumexp(log_probs, 0) - math.log(log_probs.shape[0])


def log_normal(x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Returns the log density of N(mean, variance) at x; for variance 0 it is ∞ at the mean and −∞ elsewhere."""
    density = -0.5 * ((x - mean) ** 2 / variance + variance.log() + math.log(2 * math.pi))
    return torch.where(variance > 0, density, torch.where(x == mean, math.inf, -math.inf).to(density))


def normal_cdf(z: Tensor) -> Tensor:
    """Returns Φ(z), the standard normal distribution function."""
    return torch.special.ndtr(z)


def quantile(level: float, mean: Tensor, variance: Tensor) -> Tensor:
    """Returns the `level` quantile of the mixture of N(mean_m, variance_m) by bisection: ``[M, ...]`` → ``[...]``"""
    mean, std = mean.double(), variance.double().sqrt()
    each = mean + std * math.sqrt(2) * torch.erfinv(torch.tensor(2 * level - 1, dtype=torch.float64))
    low, high = each.amin(0), each.amax(0)  # the mixture's quantile lies between those of its members
    for _ in range(64):
        middle = (low + high) / 2
        off = ((middle - mean) / std).nan_to_num(nan=math.inf)  # 0 / 0: a point mass lies at or below itself
        below = normal_cdf(off).mean(0) < level
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2


def moments(mean: Tensor, variance: Tensor | None) -> dict[str, Tensor]:
    """Computes the mixture's mean, and its aleatoric and epistemic variance: ``[M, ...]`` → ``[...]`` each"""
    return {
        "mean": mixture(mean),
        "aleatoric": torch.zeros_like(mean[0]) if variance is None else mixture(variance),
        "epistemic": ((mean - mixture(mean)) ** 2).mean(0),
    }


class MomentStream:
    """The moments of a mixture, and its log density at the targets, from members that come in chunks and are not kept."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = self.squares = self.aleatoric = torch.zeros((), dtype=torch.float64)
        self.log_density: Tensor | None = None  # of the sum over members, not of their mean
        self.dtype = torch.float64

    def add(self, members: Mapping[str, Tensor], targets: Tensor | None) -> None:
        """Adds some members: "mean", and "variance" if they have one, ``[D, N, ...]``; targets ``[N, ...]``."""
        mean, variance = members["mean"].double(), members.get("variance")
        self.dtype, count, total = members["mean"].dtype, len(mean), self.count + len(mean)
        centre = mixture(mean)
        step = centre - self.mean
        self.squares = self.squares + ((mean - centre) ** 2).sum(0) + step**2 * (self.count * count / total)
        self.mean = self.mean + step * (count / total)
        if variance is not None:
            share = count / total
            self.aleatoric = self.aleatoric + (mixture(variance).double() - self.aleatoric) * share
        if variance is not None and targets is not None:
            each = torch.logsumexp(log_normal(targets.double(), mean, variance.double()), 0)
            self.log_density = each if self.log_density is None else torch.logaddexp(self.log_density, each)
        self.count = total

    def moments(self) -> dict[str, Tensor]:
        """Returns the mean, both variances and, if members have variances and there are targets, the log density."""
        values = {"mean": self.mean, "aleatoric": self.aleatoric.expand_as(self.mean), "epistemic": self.squares / self.count}
        found = {name: value.to(self.dtype, copy=True) for name, value in values.items()}
        return found if self.log_density is None else {**found, "log_density": self.log_density - math.log(self.count)}
