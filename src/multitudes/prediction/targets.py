"""Targets: labels and target values, checked against a prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from multitudes.errors import InputError
from multitudes.prediction.values import CLASSES

if TYPE_CHECKING:
    from multitudes.prediction.prediction import Prediction

UNLABELLED = -100
"""The label that torch's cross entropy ignores by default."""
IGNORED = -1
"""The label of ignored entries in checked targets, whatever number `ignore` was."""


def checked_targets(prediction: Prediction, targets: Any = None, ignore: int | None = None) -> Tensor:
    """Returns the targets in the shape of the prediction; class labels as int64, with `ignore` replaced by −1.

    `targets` defaults to `prediction.targets`, the targets of the predicted dataset.
    """
    if targets is None:
        if prediction.targets is None:
            raise InputError("there are no targets: pass targets, or predict a dataset that yields pairs (input, target)")
        targets = prediction.targets
    tensor = torch.as_tensor(targets).detach().cpu()
    _check_order(prediction, tensor)
    if tensor.shape != prediction.shape:
        tensor = reshaped(tensor, prediction)
    if prediction.task not in CLASSES:
        if not bool(tensor.isfinite().all()):
            raise InputError("targets have a NaN or infinite value")
        return tensor.double() if tensor.dtype == torch.float64 else tensor.float()
    return as_classes(tensor, prediction.classes, ignore)


def _check_order(prediction: Prediction, targets: Tensor) -> None:
    """Refuses targets that differ from those of the predicted dataset: after a shuffled dataloader, the order is wrong."""
    known = None if prediction.targets is None else torch.as_tensor(prediction.targets)
    if (
        known is not None
        and known.numel() == targets.numel()
        and not torch.equal(known.reshape(-1).cpu(), targets.reshape(-1).to(known.dtype))
    ):
        raise InputError(
            "targets differ from pred.targets, those of the predicted dataset. A shuffled dataloader changes the order: leave "
            "targets out. To use other targets, set pred.targets = None"
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
