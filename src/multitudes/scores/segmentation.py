"""Segmentation: how much of each class is found, and how much else is taken for it."""

from __future__ import annotations

import torch
from torch import Tensor


def confusion(labels: Tensor, targets: Tensor, classes: int) -> Tensor:
    """How often each class was taken for each: ``[n]``, ``[n]`` → ``[K, K]``, true classes in rows; parts add up."""
    return torch.bincount(targets * classes + labels, minlength=classes * classes).double().unflatten(0, (classes, classes))


def miou(matrix: Tensor) -> float:
    """Mean intersection over union of the classes that were there or were predicted; 1 is best."""
    both = matrix.diagonal()
    union = matrix.sum(0) + matrix.sum(1) - both
    seen = union > 0
    return float((both[seen] / union[seen]).mean()) if bool(seen.any()) else float("nan")
