"""Losses that a task needs and torch does not have in its form."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from multitudes.errors import InputError
from multitudes.method import Criterion
from multitudes.tasks import variance_of
from multitudes.uncertainty import log_normal

UNLABELLED = -100
"""What torch's cross entropy takes for an entry without a label."""


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


def check_classes(target: Tensor, classes: int) -> None:
    """Whole numbers that are classes, or −100 where there is no label."""
    if bool(((target < 0) & (target != UNLABELLED) | (target >= classes)).any()):
        bad = target[(target < 0) & (target != UNLABELLED) | (target >= classes)]
        raise InputError(
            f"target {int(bad[0])} is no class: there are 0 to {classes - 1}; for entries without a label, {UNLABELLED}"
        )


def _classes(output: Tensor, target: Tensor) -> Tensor:
    """Cross entropy; on a GPU, which would die of it without a word, labels are checked where they come from."""
    if target.is_floating_point() and target.shape == output.shape:
        return F.cross_entropy(output, target)
    here, wanted = list(target.shape), list(output.shape[:1] + output.shape[2:])
    if target.is_floating_point() or target.is_complex() or here != wanted:
        hint = ""
        if target.shape == output.shape:
            hint = ": targets.float(), or their classes' numbers, targets.argmax(1)"
        elif target.ndim == output.ndim and target.shape[1] == 1:
            hint = ": targets.squeeze(1)"
        elif here == wanted:
            hint = ": targets.long()"
        raise InputError(
            f"targets are {here} {str(target.dtype).removeprefix('torch.')}, and for outputs {list(output.shape)} they must be "
            f"classes, whole numbers {wanted}, or a probability for each{hint}"
        )
    if target.device.type == "cpu":
        check_classes(target, output.shape[1])
    return F.cross_entropy(output, target.long())


def _yes_or_no(output: Tensor, target: Tensor) -> Tensor:
    if output.numel() != target.numel():
        raise InputError(f"outputs are {list(output.shape)}, and targets {list(target.shape)}")
    return F.binary_cross_entropy_with_logits(output.reshape(target.shape), target.to(output.dtype))


def _squares(output: Tensor, target: Tensor) -> Tensor:
    if output.numel() != target.numel():
        raise InputError(f"outputs are {list(output.shape)}, and targets {list(target.shape)}")
    return F.mse_loss(output, target.reshape(output.shape).to(output.dtype))


CRITERIA: dict[str, Criterion] = {
    "classes": _classes,
    "binary": _yes_or_no,
    "multilabel": _yes_or_no,
    "gaussian": GaussianNLL(),
    "regression": _squares,
}
"""The loss of each task."""
