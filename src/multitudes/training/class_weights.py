"""ClassWeights: the loss of classes, or of yes-or-no labels, with a weight for each class."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from multitudes.data.labels import check_class_shape, check_classes, check_yes_or_no, labelled, reshape_like
from multitudes.errors import InputError

NEEDED = {"binary": 2}
"""The number of weights of a task that has a fixed number of classes."""


@dataclass(frozen=True)
class ClassWeights:
    """The weighted mean of the entries' losses, as torch's CrossEntropyLoss(weight=...): Σ w[y] loss / Σ w[y].

    >>> loss = ClassWeights((1.0, 3.0), "classes")
    >>> loss(torch.tensor([[0.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1]))  # log 2
    tensor(0.6931)
    """

    weights: tuple[float, ...]
    """The weight of each class; for task "binary" those of no and yes."""
    task: str

    def __post_init__(self) -> None:
        if self.task not in ("classes", "binary"):
            instead = "nn.BCEWithLogitsLoss(pos_weight=...)" if self.task == "multilabel" else "a loss of yours"
            raise InputError(f"Recipe(class_weights=...) is for classes, but the task is {self.task}: pass criterion={instead}")
        if self.task in NEEDED and len(self.weights) != NEEDED[self.task]:
            raise InputError(
                f"Recipe(class_weights=...) has {len(self.weights)} numbers, but task 'binary' needs 2, of no and yes"
            )

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """Returns the loss of one member."""
        return self._classes(output, target) if self.task == "classes" else self._yes_or_no(output, target)

    def _classes(self, output: Tensor, target: Tensor) -> Tensor:
        check_class_shape(target, output)
        if len(self.weights) != output.shape[1]:
            raise InputError(
                f"Recipe(class_weights=...) has {len(self.weights)} numbers for {output.shape[1]} classes: give one per class"
            )
        if target.device.type == "cpu":
            check_classes(target, output.shape[1])
        weight = torch.tensor(self.weights, dtype=output.dtype, device=output.device)
        if target.is_floating_point():
            return F.cross_entropy(output, target, weight)
        total = F.cross_entropy(output, target.long(), weight, reduction="sum")
        return total / self.each(target, total.dtype).sum().clamp(min=torch.finfo(total.dtype).tiny)

    def _yes_or_no(self, output: Tensor, target: Tensor) -> Tensor:
        if target.device.type == "cpu":
            check_yes_or_no(target)
        target = reshape_like(target, output.shape, "outputs", "")
        known = labelled(target)
        losses = F.binary_cross_entropy_with_logits(output, (target * known).to(output.dtype), reduction="none")
        weight = self.each(target, losses.dtype)
        return (losses * weight).sum() / weight.sum().clamp(min=torch.finfo(losses.dtype).tiny)

    def each(self, target: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Returns the weight of each labelled entry, and 0 for others."""
        known = labelled(target)
        weights = torch.tensor(self.weights, dtype=dtype, device=target.device)
        return weights[torch.where(known, target, 0).long()] * known
