"""Segmentation: overlap of predicted and true pixels of each class."""

from __future__ import annotations

import torch
from torch import Tensor


def confusion(labels: Tensor, targets: Tensor, classes: int) -> Tensor:
    """Returns the confusion matrix, true classes in rows: ``[n]``, ``[n]`` → ``[K, K]``

    The matrices of parts of a dataset add up to that of the whole.
    """
    return torch.bincount(targets * classes + labels, minlength=classes * classes).double().unflatten(0, (classes, classes))


def miou(matrix: Tensor) -> float:
    """Returns the mean intersection over union, TP / (TP + FP + FN), of a confusion matrix ``[K, K]``; higher is better.

    The mean is over the classes that occur among targets or predictions. 1 is best.
    """
    both = matrix.diagonal()
    union = matrix.sum(0) + matrix.sum(1) - both
    seen = union > 0
    return float((both[seen] / union[seen]).mean()) if bool(seen.any()) else float("nan")
