"""Binary cross entropy over classes: each class is a yes-or-no question of its own, as in the A3 procedure.

Wightman, Touvron, Jégou, "ResNet strikes back: An improved training procedure in timm", 2021, https://arxiv.org/abs/2110.00476
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from multitudes.data.labels import check_class_shape, check_classes, labelled
from multitudes.errors import InputError
from multitudes.method import Criterion
from multitudes.training.class_weights import ClassWeights
from multitudes.training.recipe import Recipe


def one_vs_all(output: Tensor, target: Tensor, threshold: float | None = None) -> Tensor:
    """Returns the binary cross entropy of logits ``[B, K, ...]``, averaged over all classes of all labelled entries.

    target     labels ``[B, ...]``, or the shares of classes ``[B, K, ...]``, as mixup and cutmix make them
    threshold  shares above it count as 1, others as 0; None takes shares as they are

    >>> one_vs_all(torch.zeros(2, 10), torch.tensor([3, 7]))  # log 2
    tensor(0.6931)
    """
    check_class_shape(target, output)
    if target.device.type == "cpu":
        check_classes(target, output.shape[1])
    logits, classes = output.to(torch.promote_types(output.dtype, torch.float32)), output.shape[1]
    if target.is_floating_point():
        shares, mask = target, torch.ones_like(target[:, :1], dtype=torch.bool)
    else:
        numbers = torch.arange(classes, device=target.device).view(-1, *(1 for _ in target.shape[1:]))
        shares, mask = target.unsqueeze(1) == numbers, labelled(target).unsqueeze(1)
    if threshold is not None:
        shares = shares > threshold
    losses = F.binary_cross_entropy_with_logits(logits, shares.to(logits.dtype), reduction="none")
    return (losses * mask).sum() / (mask.sum().clamp(min=1) * classes)


def recipe_loss(recipe: Recipe, task: str, criterion: Criterion | None) -> Criterion | None:
    """Returns the loss that the recipe sets in place of the task's, or None."""
    if recipe.class_weights is not None:
        if criterion is not None:
            raise InputError("pass either Recipe(class_weights=...) or criterion=, whose weights are its own, not both")
        return ClassWeights(recipe.class_weights, task)
    if recipe.loss == "task":
        return None
    if task != "classes":
        raise InputError(f"Recipe(loss='bce') is for classes, but the task is {task}: leave loss= out")
    if criterion is not None:
        raise InputError("pass either Recipe(loss='bce') or criterion=, not both")
    return partial(one_vs_all, threshold=recipe.threshold)
