"""Targets: labels and target values, checked against a prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from multitudes.data.labels import IGNORED as IGNORED
from multitudes.data.labels import as_classes, as_target_tensor, check_finite, reshape_like
from multitudes.errors import InputError
from multitudes.prediction.values import CLASSES

if TYPE_CHECKING:
    from multitudes.prediction.prediction import Prediction


def checked_targets(prediction: Prediction, targets: Any = None, ignore: int | None = None) -> Tensor:
    """Returns the targets in the shape of the prediction; class labels as int64, with −100 and `ignore` replaced by −1.

    `targets` and `ignore` default to those of the prediction, which are those of the predicted dataset.
    """
    if targets is None and prediction.targets is None:
        raise InputError("there are no targets: pass targets=, or predict a dataset of pairs (input, target)")
    tensor = as_target_tensor(prediction.targets if targets is None else targets).detach().cpu()
    if targets is not None:
        _check_order(prediction, tensor)
    if tensor.shape != prediction.shape:
        tensor = reshaped(tensor, prediction)
    if prediction.task not in CLASSES:
        check_finite(tensor)
        return tensor.double() if tensor.dtype == torch.float64 else tensor.float()
    return as_classes(tensor, prediction.classes, prediction.ignore if ignore is None else ignore)


def check_prediction(value: Any, verb: str) -> None:
    """Refuses anything but a prediction, where `verb` takes one."""
    if not hasattr(value, "has_members"):  # the class itself is defined above this module
        raise InputError(
            f"{verb} takes a Prediction, not a {type(value).__name__}: mt.predict(ens, data), or mt.Prediction(logits=...)"
        )


def members_first(prediction: Prediction, targets: Tensor) -> str:
    """Returns a hint, if targets fit the members' axis: outputs ``[N, M, ...]`` were given in place of ``[M, N, ...]``."""
    if targets.ndim and len(targets) == prediction.count != len(prediction):
        return f", and there are {prediction.count} members: members come first, as in logits.transpose(0, 1)"
    return ""


def _check_order(prediction: Prediction, targets: Tensor) -> None:
    """Refuses targets that differ from those of the predicted dataset: a shuffled dataloader would pair them wrongly."""
    known = None if prediction.targets is None else torch.as_tensor(prediction.targets)
    if (
        known is not None
        and known.numel() == targets.numel()
        and not torch.equal(known.reshape(-1).cpu(), targets.reshape(-1).to(known.dtype))
    ):
        raise InputError(
            "targets differ from pred.targets, which came with the predicted dataset. Leave targets out: a shuffled dataloader "
            "has another order. To use other targets, set pred.targets = None first"
        )


def reshaped(targets: Tensor, prediction: Prediction) -> Tensor:
    """Reshapes targets to the shape of the prediction. Their shape may differ only by axes of length one."""
    hint = members_first(prediction, targets)
    if prediction.task == "classes" and targets.ndim == len(prediction.shape) + 1 and targets.shape[1] == prediction.classes:
        hint = ": give labels, targets.argmax(1)"
    elif prediction.task == "binary" and prediction.shape[1:] == (2,) and targets.shape == prediction.shape[:1]:
        hint = ": for two logits per example use task='classes'"
    elif prediction.task == "classes" and targets.ndim == len(prediction.shape) > 1:
        hint = f"; axis 1 was read as {prediction.classes} classes: if classes are the last axis, pass class_axis=-1"
    return reshape_like(targets, prediction.shape, "predictions", hint)
