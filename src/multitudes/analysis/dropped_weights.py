"""kl_bound: how far the output of a layer moves if each of its weights is kept with probability p only.

Proposition C.1 of the supplement of "Packed-Ensembles for Efficient Uncertainty Estimation", ICLR 2023,
https://arxiv.org/abs/2210.09184. Unit c of a linear layer is z(c) = Σ_k ω(c, k) h(k) with independent Gaussian inputs
h(k) ~ N(μ(k), Σ(k, k)); its approximation has mask(k, c) ~ Bernoulli(p) on each weight. Both are taken as Gaussian.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from multitudes.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from multitudes.figures.theme import Theme


@dataclass(frozen=True)
class KLBound:
    """The moments of each unit of a layer with all and with some of its weights, their divergence, and its upper bound."""

    p: Tensor
    """Share of weights that are kept, ``[P]``."""
    mean: Tensor
    """Mean of each unit, μ_z, eq. 9: ``[C]``."""
    variance: Tensor
    """Variance of each unit, σ_z², eq. 11: ``[C]``."""
    masked_mean: Tensor
    """Mean of each unit with masked weights, eq. 13 and 15: ``[C, P]``."""
    masked_variance: Tensor
    """Variance of each unit with masked weights, eq. 14 and 16: ``[C, P]``."""
    kl: Tensor
    """Kullback–Leibler divergence of the unit from the masked unit, eq. 17: ``[C, P]``."""
    bound: Tensor
    """Upper bound of the divergence, eq. 8: ``[C, P]``."""

    def figure(self, names: Sequence[str] | None = None, theme: Theme = "light") -> Figure:
        """Draws bound and divergence over p, a line for each unit; `names` are the units' names."""
        from multitudes.figures import kl_bound as draw

        return draw(self.p, self.bound, self.kl, names=names, theme=theme)


def kl_bound(p: Any, weight: Any, mean: Any, variance: Any) -> KLBound:
    """Returns the divergence between units of a layer and the same units with masked weights, and its upper bound.

    p         probability of keeping a weight, above 0 and at most 1: a number or ``[P]``
    weight    ω, the weights of the units: ``[C, K]``, or ``[K]`` for one unit
    mean      μ, the mean of each input: ``[K]``, one number for all inputs, or ``[C, 1]`` for one number per unit
    variance  Σ(k, k), the variance of each input, in the same shapes. Inputs are independent

    >>> kl_bound(0.5, torch.full((100,), 0.1), mean=0.1, variance=1.0).bound
    tensor([[0.5013]], dtype=torch.float64)
    """
    p, weight, mean, variance = (torch.as_tensor(v).detach().to("cpu", torch.float64) for v in (p, weight, mean, variance))
    p, weight = p.reshape(-1), weight[None] if weight.ndim == 1 else weight
    if weight.ndim != 2 or not weight.numel():
        raise InputError(f"weight must be [C, K], a row for each unit, not {list(weight.shape)}: flatten a kernel's last axes")
    for name, value in (("mean", mean), ("variance", variance)):
        units, inputs = weight.shape
        if tuple(value.shape) not in ((), (1,), (inputs,), (1, inputs), (units, 1)):
            hint = ". Of a covariance give the diagonal: the proposition holds for independent inputs" if value.ndim > 1 else ""
            raise InputError(f"{name} must be a number, [{inputs}] or [{units}, 1], not {list(value.shape)}{hint}")
    if not bool(((p > 0) & (p <= 1)).all()):
        raise InputError("p must be above 0 and at most 1: with p = 0 no weight is left, and the bound is infinite")
    if bool((variance < 0).any()):
        raise InputError("variance is negative: give variances, std ** 2")
    mu_z = (weight * mean).sum(1)  # eq. 9
    var_z = (weight**2 * variance).sum(1)  # eq. 11
    if not bool((var_z > 0).all()):
        raise InputError("a unit has variance 0, and then no divergence: leave out units whose weights are all zero")
    spread = (weight**2 * mean**2).expand_as(weight).sum(1)[:, None]  # Σ_k ω² μ²
    mu, var = mu_z[:, None], var_z[:, None]
    masked_mean = p * mu  # eq. 15
    masked_variance = p * (var + (1 - p) * spread)  # eq. 16
    kl = ((masked_variance / var).log() + (var + (mu - masked_mean) ** 2) / masked_variance - 1) / 2  # eq. 17
    bound = (p + 1 / p - 2 + p * (1 - p) * spread / var + ((1 - p) * mu) ** 2 / (p * var)) / 2  # eq. 8
    return KLBound(p, mu_z, var_z, masked_mean, masked_variance, kl, bound)
