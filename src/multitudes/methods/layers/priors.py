"""Priors: the ELBO of methods whose weights are random draws (EMP, ECMP, MCDropout, DropConnect), as a loss.

−ELBO / N is the mean over examples of −log p(y | f), plus KL / N. For weights W drawn from narrow Gaussians around M_k with
probabilities p_k, and a prior N(0, 1/τ), KL ≈ Σ_k p_k τ/2 ‖M_k‖² + constant (eq. 2 of "Ensemble Model Patching",
https://arxiv.org/abs/1905.09453): the mean of τ/2 ‖W‖² over draws. Biases have the precision ρ in place of τ.

A layer that keeps each input or weight with probability 1 − p, and divides by it, draws W / (1 − p) or 0. So M = W / (1 − p),
and its KL is (1 − p) τ/2 ‖M‖² = τ/2 ‖W‖² / (1 − p).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from multitudes.errors import InputError
from multitudes.method import Criterion
from multitudes.settings import Count, above, at_least, check_rules

if TYPE_CHECKING:
    from multitudes.ensemble import Ensemble

UNSCALED = "prior='elbo' needs the size of the training set, examples=50_000"
"""Refusal of an ELBO without the number of examples."""


def log_likelihood(method: Any, criterion: Criterion, task: str) -> Criterion:
    """Returns the loss of an ELBO's data term: −log p(y | f) per example, without terms that do not depend on f.

    A criterion of a regression is a mean over examples and over the D targets of each; the log likelihood is a sum over
    targets. So it is multiplied by D, and for task "regression" by τ_output / 2 (eq. 9).
    """
    if task not in ("regression", "gaussian"):
        return criterion
    name, tau = type(method).__name__, method.tau_output
    if task == "regression" and tau is None:
        raise InputError(
            f"{name}(prior='elbo') on task 'regression' needs the precision of an observation: {name}(tau_output=...)"
        )

    def negative_log(output: Any, target: Any) -> Tensor:
        loss, targets = criterion(output, target), target.numel() / len(target)
        if task == "gaussian":
            return loss * targets
        _check_squares(name, loss, output, target)
        return loss * (tau / 2 * targets)

    return negative_log


def _check_squares(name: str, loss: Tensor, output: Any, target: Tensor) -> None:
    """Refuses a criterion other than the mean squared error."""
    if torch.compiler.is_compiling() or not isinstance(output, Tensor) or output.numel() != target.numel():
        return
    with torch.no_grad():
        squares = F.mse_loss(output.flatten().float(), target.flatten().float())
        same = torch.allclose(loss.detach().float(), squares, rtol=1e-2, atol=1e-6)
    if not same:
        raise InputError(
            f"{name}(prior='elbo') on task 'regression' needs the mean squared error, nn.MSELoss(), as its criterion, which it "
            f"multiplies by tau_output / 2: this one returns {loss.item():.4g}, not {squares.item():.4g}"
        )


def normal_prior(method: Any, squares: Mapping[str, Tensor]) -> Tensor | None:
    """Returns KL / N from the mean over draws of each parameter's ‖W‖², by its name; None if there are no parameters."""
    terms = []
    for name, square in squares.items():
        precision = method.rho if "bias" in name.rpartition(".")[2] else method.tau
        terms.append(precision / 2 * square / method.examples)
    return torch.stack(terms).sum() if terms else None


@dataclass(frozen=True, kw_only=True)
class DropPrior:
    """Settings and terms of the ELBO that MCDropout and DropConnect share."""

    prior: Literal["none", "elbo"] = "none"
    """The prior in the loss: "elbo" adds the KL divergence of eq. 2 of "Ensemble Model Patching"."""

    tau: Annotated[float, at_least(0)] = 1.0
    """With prior="elbo", the prior's precision for weights, τ."""

    rho: Annotated[float, at_least(0)] = 1.0
    """With prior="elbo", the prior's precision for biases, ρ."""

    examples: Count | None = None
    """With prior="elbo", the size of the training set."""

    tau_output: Annotated[float, above(0)] | None = None
    """For regression, the precision of an observation in the target's own units: its inverse is added to the predictive
    variance. With prior="elbo" it weighs the squared error, so train on targets in their own units."""

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[misc]
        check_rules(self, (self.prior == "elbo" and self.examples is None, "prior examples", UNSCALED))

    def kept_rates(self, ensemble: Ensemble) -> dict[str, float]:
        """Returns the probability 1 − p with which each dropped weight is kept, by name; other weights are missing."""
        raise NotImplementedError

    def likelihood(self, criterion: Criterion, task: str) -> Criterion:
        """Returns the criterion; with prior="elbo" it is the data term of the ELBO."""
        return log_likelihood(self, criterion, task) if self.prior == "elbo" else criterion

    def penalty(self, ensemble: Ensemble, count: int) -> Tensor | None:
        """Returns the prior on all trainable parameters."""
        if self.prior == "none":
            return None
        kept = self.kept_rates(ensemble)
        named = [(name, p) for name, p in ensemble.named_parameters() if p.requires_grad]
        return normal_prior(self, {name: p.square().sum() / kept.get(name, 1.0) for name, p in named})
