"""Losses that a task needs and torch does not have in its form."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from multitudes.errors import InputError
from multitudes.method import Criterion
from multitudes.tasks import variance_of
from multitudes.uncertainty import log_normal


class GaussianNLL(nn.Module):
    """The negative log likelihood of Gaussian heads: means and raw variances side by side, ``[B, 2 D, ...]``.

    (y − μ)² / 2σ² + ½ log σ² + ½ log 2π with σ² = softplus of the second half (eq. 21 of the Packed-Ensembles supplement),
    averaged over all entries. For `mt.ensemble(model, ..., task="gaussian")`.

    >>> import math, torch
    >>> GaussianNLL()(torch.tensor([[0.0, math.log(math.e - 1)]]), torch.tensor([[1.0]]))  # N(0, 1) at 1
    tensor(1.4189)
    """

    def __init__(self, reduction: Literal["mean", "sum", "none"] = "mean") -> None:
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise InputError(f"reduction={reduction!r}: say 'mean', 'sum' or 'none'")
        self.reduction = reduction

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """The loss of outputs ``[B, 2 D, ...]`` and targets ``[B, D, ...]``, or ``[B]`` for D = 1."""
        if output.ndim < 2 or output.shape[1] % 2:
            raise InputError(f"means and variances must lie side by side [B, 2 D, ...]: {list(output.shape)}")
        mean, raw = output.chunk(2, 1)
        if target.shape != mean.shape and mean.shape[1] == 1 and target.shape == mean.shape[:1] + mean.shape[2:]:
            target = target.unsqueeze(1)
        if target.shape != mean.shape:
            raise InputError(f"targets are {list(target.shape)}, and means {list(mean.shape)}")
        loss = -log_normal(target, mean, variance_of(raw))
        return loss if self.reduction == "none" else loss.mean() if self.reduction == "mean" else loss.sum()


def _yes_or_no(output: Tensor, target: Tensor) -> Tensor:
    if output.numel() != target.numel():
        raise InputError(f"outputs are {list(output.shape)}, and targets {list(target.shape)}")
    return F.binary_cross_entropy_with_logits(output.reshape(target.shape), target.to(output.dtype))


def _squares(output: Tensor, target: Tensor) -> Tensor:
    if output.numel() != target.numel():
        raise InputError(f"outputs are {list(output.shape)}, and targets {list(target.shape)}")
    return F.mse_loss(output, target.reshape(output.shape).to(output.dtype))


CRITERIA: dict[str, Criterion] = {
    "classes": F.cross_entropy,
    "binary": _yes_or_no,
    "multilabel": _yes_or_no,
    "gaussian": GaussianNLL(),
    "regression": _squares,
}
"""The loss of each task."""
