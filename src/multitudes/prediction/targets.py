"""Targets: what should have been answered, checked against what was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from multitudes.errors import InputError
from multitudes.prediction.values import CLASSES

if TYPE_CHECKING:
    from multitudes.prediction.prediction import Prediction

UNLABELLED = -100
"""What torch's cross entropy takes for an entry without a label."""
IGNORED = -1
"""What stands for a pixel or token without a label, whatever number it was given as."""


def checked_targets(prediction: Prediction, targets: Any = None, ignore: int | None = None) -> Tensor:
    """The targets in the shape of the prediction; classes as whole numbers, `ignore` as −1.

    Without targets, those that travelled with the prediction.
    """
    if targets is None:
        if prediction.targets is None:
            raise InputError(
                "there are no targets: score(pred, targets), or predict a dataset that gives pairs (input, target)"
            )
        targets = prediction.targets
    found = torch.as_tensor(targets).detach().cpu()
    _same_as_before(prediction, found)
    if found.shape != prediction.shape:
        found = reshaped(found, prediction)
    if prediction.task not in CLASSES:
        if bool(found.isnan().any()) or bool(found.isinf().any()):
            raise InputError("a target is NaN or infinite")
        return found.double() if found.dtype == torch.float64 else found.float()
    return as_classes(found, prediction.classes, ignore)


def _same_as_before(prediction: Prediction, targets: Tensor) -> None:
    own = None if prediction.targets is None else torch.as_tensor(prediction.targets)
    if (
        own is not None
        and own.numel() == targets.numel()
        and not torch.equal(own.reshape(-1).cpu(), targets.reshape(-1).to(own.dtype))
    ):
        raise InputError(
            "these targets are not those that came with the predicted data: a shuffled loader gives its own order, "
            "which pred.targets has. To score against others, set pred.targets = None"
        )


def reshaped(targets: Tensor, prediction: Prediction) -> Tensor:
    """Targets that differ by axes of length one only."""
    if [n for n in targets.shape if n != 1] == [n for n in prediction.shape if n != 1]:
        return targets.reshape(prediction.shape)
    hint = ""
    if prediction.task == "classes" and targets.ndim == len(prediction.shape) + 1 and targets.shape[1] == prediction.classes:
        hint = ": give the classes' numbers, targets.argmax(1)"
    elif prediction.task == "classes" and targets.ndim == len(prediction.shape) > 1:
        hint = f"; axis 1 was taken for that of {prediction.classes} classes, and class_axis=-1 says otherwise"
    raise InputError(f"targets are {list(targets.shape)}, and what is predicted is {list(prediction.shape)}{hint}")


def as_classes(targets: Tensor, classes: int, ignore: int | None) -> Tensor:
    """Whole numbers from 0 to classes − 1, and −1 for what is to be ignored."""
    targets = targets.long() if targets.dtype == torch.bool else targets
    whole = not targets.is_complex() and bool((targets.isfinite() & (targets == targets.floor())).all())
    if not whole:
        raise InputError("targets of classes must be whole numbers")
    found = targets.long()
    out = (found < 0) | (found >= classes)
    if ignore is not None:
        out &= found != ignore
        found = torch.where(found == ignore, IGNORED, found)
    if bool(out.any()):
        at = [int(axis) for axis in out.nonzero()[0]]
        hint = (
            "" if ignore not in (None, UNLABELLED) else "; for entries without a label, ignore=255 or whatever stands for them"
        )
        raise InputError(f"target {int(targets[tuple(at)])} of example {at[0]} is no class: there are 0 to {classes - 1}{hint}")
    return found
