"""Losses: the criterion of each task."""

from __future__ import annotations

from typing import Annotated, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from multitudes.data.labels import check_class_shape, check_classes, check_yes_or_no, labelled, reshape_like
from multitudes.errors import InputError
from multitudes.method import Criterion
from multitudes.prediction.tasks import variance_of
from multitudes.prediction.uncertainty import log_normal
from multitudes.settings import between, check_value


class GaussianNLL(nn.Module):
    """Negative log likelihood of Gaussian heads: means and raw variances side by side, ``[B, 2 D, ...]``.

    (y − μ)² / 2σ² + ½ log σ² + ½ log 2π with σ² = softplus of the second half (eq. 21 of the Packed-Ensembles supplement),
    averaged over all entries. For `mt.ensemble(model, ..., task="gaussian")`.

    beta   weights each entry by σ^(2β), through which no gradient flows (β-NLL: Seitzer et al., "On the Pitfalls of
           Heteroscedastic Uncertainty Estimation with Probabilistic Neural Networks", ICLR 2022,
           https://arxiv.org/abs/2203.09168). The plain likelihood, 0, pulls the mean by (y − μ) / σ², so entries whose variance
           collapses early rule the gradient; with 1 the mean learns as under squared error; the paper advises 0.5.
           Validation and scores always use the plain likelihood

    >>> import math, torch
    >>> GaussianNLL()(torch.tensor([[0.0, math.log(math.e - 1)]]), torch.tensor([[1.0]]))  # N(0, 1) at 1
    tensor(1.4189)
    """

    def __init__(self, reduction: Literal["mean", "sum", "none"] = "mean", beta: float = 0.0) -> None:
        super().__init__()
        check_value("reduction", reduction, Literal["mean", "sum", "none"])
        check_value("beta", beta, Annotated[float, between(0, 1)])
        self.reduction, self.beta = reduction, beta

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """Returns the loss of outputs ``[B, 2 D, ...]`` and targets ``[B, D, ...]``, or ``[B]`` for D = 1."""
        if output.ndim < 2 or output.shape[1] % 2:
            raise InputError(
                f"outputs have shape {list(output.shape)}, but must hold means and raw variances side by side, [B, 2 D, ...]"
            )
        mean, raw = output.chunk(2, 1)
        if target.shape != mean.shape and mean.shape[1] == 1 and target.shape == mean.shape[:1] + mean.shape[2:]:
            target = target.unsqueeze(1)
        if target.shape != mean.shape:
            raise InputError(
                f"targets have shape {list(target.shape)}, but must have the shape of the means, {list(mean.shape)}"
            )
        variance = variance_of(raw)
        loss = -log_normal(target, mean, variance)
        if self.beta:
            loss = loss * variance.detach() ** self.beta
        return loss if self.reduction == "none" else loss.mean() if self.reduction == "mean" else loss.sum()


def _classes(output: Tensor, target: Tensor) -> Tensor:
    """Cross entropy, averaged over the labelled entries; 0 if there are none.

    CUDA aborts the process on a label out of range, so labels for a GPU are checked earlier, before they are moved there.
    """
    check_class_shape(target, output)
    if target.device.type == "cpu":
        check_classes(target, output.shape[1])
    if target.is_floating_point():
        return F.cross_entropy(output, target)
    labels = target.long()
    return F.cross_entropy(output, labels, reduction="sum") / labelled(labels).sum().clamp(min=1)


def _yes_or_no(output: Tensor, target: Tensor) -> Tensor:
    """Binary cross entropy, averaged over the labelled entries; 0 if there are none."""
    if target.device.type == "cpu":
        check_yes_or_no(target)
    target = _like_outputs(output, target)
    mask = labelled(target)
    losses = F.binary_cross_entropy_with_logits(output, (target * mask).to(output.dtype), reduction="none")
    return (losses * mask).sum() / mask.sum().clamp(min=1)


def _squares(output: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(output, _like_outputs(output, target).to(output.dtype))


def _like_outputs(output: Tensor, target: Tensor) -> Tensor:
    last = target.ndim == output.ndim > 2 and target.movedim(-1, 1).shape == output.shape
    return reshape_like(target, output.shape, "outputs", ": targets.movedim(-1, 1)" if last else "")


CRITERIA: dict[str, Criterion] = {
    "classes": _classes,
    "binary": _yes_or_no,
    "multilabel": _yes_or_no,
    "gaussian": GaussianNLL(),
    "regression": _squares,
}
"""The criterion of each task."""
