"""Losses that a task needs and torch does not have in its form."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from multitudes.errors import InputError
from multitudes.method import Criterion
from multitudes.prediction.targets import UNLABELLED
from multitudes.prediction.tasks import variance_of
from multitudes.prediction.uncertainty import log_normal

ROUNDING = 1e-2
"""How far from 1 probabilities may sum up, some being of half precision."""


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


def check_classes(target: Tensor, classes: int, ignore: int = UNLABELLED) -> None:
    """Whole numbers that are classes, or `ignore` where there is no label; or a probability for each class."""
    if target.is_floating_point():
        if target.ndim > 1 and (bool((~(target >= 0)).any()) or bool(((target.sum(1) - 1).abs() > ROUNDING).any())):
            raise InputError("targets that are no whole numbers must be probabilities of classes, which sum up to 1")
        return
    labels = target.long()  # small types would take −100 for 156
    wrong = ((labels < 0) | (labels >= classes)) & (labels != ignore) & (labels != UNLABELLED)
    if bool(wrong.any()):
        raise InputError(
            f"target {int(labels[wrong][0])} is no class: there are 0 to {classes - 1}; entries without a label are "
            f"{UNLABELLED}, or what ignore= says"
        )


def check_labels(target: Tensor, ignore: int = UNLABELLED) -> None:
    """0 or 1, or a probability; or `ignore` where there is no label."""
    values = target if target.is_floating_point() else target.long()
    wrong = ~((values >= 0) & (values <= 1)) & (values != ignore) & (values != UNLABELLED)
    if bool(wrong.any()):
        raise InputError(f"target {values[wrong][0].item()} is neither 0 nor 1, nor a probability between them")


def _classes(output: Tensor, target: Tensor) -> Tensor:
    """Cross entropy, the mean over what has a label: 0 where nothing has one.

    On a GPU, which would die of it without a word, labels are checked where they come from.
    """
    soft = target.is_floating_point() and target.shape == output.shape
    here, wanted = list(target.shape), list(output.shape[:1] + output.shape[2:])
    if not soft and (target.is_floating_point() or target.is_complex() or here != wanted):
        raise InputError(
            f"targets are {here} {str(target.dtype).removeprefix('torch.')}, and for outputs {list(output.shape)} they must be "
            f"classes, whole numbers {wanted}, or a probability for each{_hint(output, target)}"
        )
    if target.device.type == "cpu":
        check_classes(target, output.shape[1])
    if soft:
        return F.cross_entropy(output, target)
    labels = target.long()
    return F.cross_entropy(output, labels, reduction="sum") / labelled(labels).sum().clamp(min=1)


def labelled(target: Tensor) -> Tensor:
    """Which entries have a label."""
    return (target if target.is_floating_point() else target.long()) != UNLABELLED


def _hint(output: Tensor, target: Tensor) -> str:
    """What to type where targets are of another shape than classes have."""
    if target.shape == output.shape:
        return ": targets.float(), or their classes' numbers, targets.argmax(1)"
    if target.ndim == output.ndim and target.shape[1] == 1:
        return ": targets.squeeze(1)"
    if target.shape == output.shape[:1] + output.shape[2:]:
        return ": targets.long()"
    if output.ndim > 2 and target.shape == output.shape[:-1]:
        return "; where classes are the last axis, fit(..., class_axis=-1)"
    return ""


def _fitted(output: Tensor, target: Tensor) -> Tensor:
    """Targets in the shape of the outputs, from which they may differ by axes of length one."""
    if [n for n in target.shape if n != 1] == [n for n in output.shape if n != 1]:
        return target.reshape(output.shape)
    hint = ""
    if target.ndim == output.ndim > 2 and target.movedim(-1, 1).shape == output.shape:
        hint = ": targets.movedim(-1, 1)"
    raise InputError(f"outputs are {list(output.shape)}, and targets {list(target.shape)}{hint}")


def _yes_or_no(output: Tensor, target: Tensor) -> Tensor:
    """Binary cross entropy, the mean over what has a label: 0 where nothing has one."""
    if target.device.type == "cpu":
        check_labels(target)
    wanted = _fitted(output, target)
    known = labelled(wanted)
    each = F.binary_cross_entropy_with_logits(output, (wanted * known).to(output.dtype), reduction="none")
    return (each * known).sum() / known.sum().clamp(min=1)


def _squares(output: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(output, _fitted(output, target).to(output.dtype))


CRITERIA: dict[str, Criterion] = {
    "classes": _classes,
    "binary": _yes_or_no,
    "multilabel": _yes_or_no,
    "gaussian": GaussianNLL(),
    "regression": _squares,
}
"""The loss of each task."""
