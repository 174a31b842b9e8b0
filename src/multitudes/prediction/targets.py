"""Targets: what should have been answered, checked against what was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from multitudes.data.labels import IGNORED as IGNORED
from multitudes.data.labels import as_classes, check_finite, reshape_like
from multitudes.errors import InputError
from multitudes.prediction.values import CLASSES

if TYPE_CHECKING:
    from multitudes.prediction.prediction import Prediction


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
        check_finite(found)
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
    """Reshapes targets like the prediction, from which they may differ only by axes of length one."""
    hint = ""
    if prediction.task == "classes" and targets.ndim == len(prediction.shape) + 1 and targets.shape[1] == prediction.classes:
        hint = ": give labels, targets.argmax(1)"
    elif prediction.task == "classes" and targets.ndim == len(prediction.shape) > 1:
        hint = f"; axis 1 was taken for {prediction.classes} classes: if they are the last axis, pass class_axis=-1"
    return reshape_like(targets, prediction.shape, "predictions", hint)
