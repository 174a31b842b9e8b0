"""TaskCriterion: the loss of a training step, from the caller's criterion or the task's."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor

from multitudes.data.labels import UNLABELLED, as_wide, check_classes, check_finite, check_yes_or_no, labelled
from multitudes.engine.selected_output import output_of
from multitudes.errors import InputError
from multitudes.method import Criterion
from multitudes.prediction.reduction import check_declared
from multitudes.prediction.values import CLASSES
from multitudes.settings import check_value
from multitudes.training.class_weights import ClassWeights
from multitudes.training.fingerprint import criterion_fingerprint
from multitudes.training.losses import CRITERIA

FAR_TARGETS = 50
"""The mean or deviation of a batch's targets above which fit warns, for a network whose outputs start near 0."""


@dataclass
class TaskCriterion:
    """The loss of one member, called as criterion(output, target): the caller's criterion, or the task's."""

    task: str
    custom: Criterion | None = None
    """The caller's criterion; None for the task's."""
    output: str | None = None
    """Name of the output tensor to use, if the model returns several."""
    class_axis: Literal[1, -1] | None = None
    """Axis of the classes in one network's output; None stands for 1."""
    ignore: int | None = None
    """Label that marks entries to ignore, besides −100."""
    weights: Sequence[Tensor] = ()
    """Weight of the current part of an accumulated step: its number of labels, divided by the mean number over all parts and
    processes. One weight for all members, or one per member if members have their own batches."""
    from_recipe: Criterion | None = None
    """The loss that the recipe sets in place of the task's."""
    calls: int = 0
    """Number of members whose loss was computed for the current part."""
    classes: int | None = None
    """Number of classes, once the first outputs are there."""
    has_label: bool = False
    """Whether a target of training had a label so far; numbers are labels."""
    losses: list[Tensor] = field(default_factory=list)
    """Losses of the current step, in the order of the calls: for most methods one of each member."""

    def __post_init__(self) -> None:
        check_value("class_axis", self.class_axis, Literal[1, -1, None])
        check_declared(self.custom)
        if self.ignore is not None and self.task not in CLASSES:
            raise InputError(
                f"ignore={self.ignore} needs class labels, but the task is {self.task}: drop these examples instead"
            )

    @property
    def takes_mean(self) -> bool:
        """Whether it is the task's criterion, whose reduction needs no check."""
        return self.custom is None

    def __call__(self, outputs: Any, target: Any) -> Tensor:
        """Returns the loss of one member."""
        loss = self._loss(outputs, target)
        self.losses.append(loss.detach())
        return loss

    def _loss(self, outputs: Any, target: Any) -> Tensor:
        if self.custom is not None:
            return _scalar(self.custom(outputs, target))
        output = output_of(outputs, self.output)
        if self.task == "classes" and self.class_axis == -1:
            output, target = output.movedim(-1, 1), self._with_classes_second(target)
        loss = (self.from_recipe or CRITERIA[self.task])(output, target)
        if not self.weights:
            return loss
        self.calls += 1
        return loss * self.weights[(self.calls - 1) % len(self.weights)]

    def _with_classes_second(self, target: Any) -> Any:
        """Moves the class axis of probabilities ``[B, T, K]`` to axis 1; labels stay unchanged."""
        moved = isinstance(target, Tensor) and self._are_probabilities(target) and target.ndim > 2 and self.class_axis == -1
        return target.movedim(-1, 1) if moved else target

    def _are_probabilities(self, target: Tensor) -> bool:
        return self.task == "classes" and target.is_floating_point()

    def settings(self) -> dict[str, Any]:
        """Describes the criterion as JSON, so that a resumed run can be compared with the old one."""
        custom = None if self.custom is None else criterion_fingerprint(self.custom)
        return {"criterion": custom, "output": self.output, "class_axis": self.class_axis or 1, "ignore": self.ignore}

    def mark_ignored(self, target: Any, maybe_probabilities: bool = True) -> Any:
        """Replaces the label `ignore` by −100, which torch ignores. Class probabilities stay unchanged."""
        if self.ignore is None or not isinstance(target, Tensor):
            return target
        if maybe_probabilities and self._are_probabilities(target):
            return target
        labels = as_wide(target)
        return torch.where(labels == self.ignore, UNLABELLED, labels)

    def weighted_parts(self, batches: Iterator[Any], count: int, fabric: Any, per_member: bool) -> Iterator[tuple[Any, Any]]:
        """Yields the `count` parts of a step, and sets the weight of each.

        The loss of a part is a mean over its labelled entries. With the weights, the loss of the step is a mean over all
        labels of all parts and processes, even if some parts have fewer labels.
        """
        parts = ((x, self._looked_at(self.mark_ignored(y)) if self.custom is None else y) for x, y in islice(batches, count))
        if (count == 1 and fabric.world_size == 1) or self.custom is not None or self.task not in CLASSES:
            yield from parts
            return
        some = list(parts)
        labels = torch.stack([self._count_labels(target, per_member) for _, target in some])  # [parts, M or 1]
        mean = fabric.all_reduce(labels.mean(0), reduce_op="mean").clamp(min=torch.finfo(labels.dtype).tiny)
        for part, weights in zip(some, labels / mean, strict=True):
            self.weights, self.calls = weights.unbind(), 0
            yield part
        self.weights = ()

    def _looked_at(self, target: Any) -> Any:
        """Returns the target, and notes whether one had a label so far. Once one had, no more are looked at."""
        if not self.has_label:
            self.has_label = self.task not in CLASSES or not isinstance(target, Tensor) or bool(labelled(target).any())
        return target

    def check_has_label(self, loss: float) -> None:
        """Refuses a training set without a label, after an epoch whose loss is 0 in all processes."""
        if not loss and self.custom is None and not self.has_label:
            marks = f"{UNLABELLED}" if self.ignore is None else f"{UNLABELLED} or ignore={self.ignore}"
            raise InputError(f"no target of the training set has a label: all are {marks}. Give targets that are classes")

    def _count_labels(self, target: Any, per_member: bool) -> Tensor:
        """Counts labelled entries, by the weights of their classes if they have any: ``[1]`` for all members, or ``[M]``."""
        if not isinstance(target, Tensor):
            kind = type(target).__name__
            raise InputError(
                f"targets are a {kind}, but task {self.task!r} needs a tensor: select it with unpack=, or pass criterion="
            )
        mask = labelled(target)
        if isinstance(self.from_recipe, ClassWeights) and not self._are_probabilities(target):
            mask = self.from_recipe.each(target)
        if self._are_probabilities(target):
            mask = mask.select(-1 if self.class_axis == -1 else 1 + per_member, 0)
        return mask.flatten(1).sum(1).double() if per_member else mask.sum().double()[None]

    def check_target(self, target: Tensor) -> None:
        """Checks targets before they reach a GPU: labels out of range abort CUDA, other wrong values go unnoticed."""
        ignore = UNLABELLED if self.ignore is None else self.ignore
        if self.custom is not None:
            return
        if self.task == "classes" and self.classes is not None:
            check_classes(self._with_classes_second(target), self.classes, ignore)
        elif self.task in ("binary", "multilabel"):
            check_yes_or_no(target, ignore)
        elif self.task not in CLASSES:
            check_finite(target)

    def scale_advice(self, outputs: Any, target: Tensor) -> str:
        """Says that numbers to predict are far from the scale of the first outputs, those of a new network; "" if not."""
        if self.task in CLASSES or self.custom is not None or not target.numel():
            return ""
        mean, spread = float(target.double().mean()), float(target.double().std(correction=0))
        if max(abs(mean), spread) <= max(FAR_TARGETS, 5 * float(output_of(outputs, self.output).detach().abs().mean())):
            return ""
        return (
            f"targets have a mean of {mean:.3g} and a deviation of {spread:.3g}, far from the network's outputs: training "
            "may take thousands of steps. Standardise them, Data(x, (y - mean) / std, target_mean=mean, target_std=std)"
        )

    def learn_classes(self, outputs: Any, rows: bool) -> None:
        """Takes the number of classes from the first outputs: ``[M, B, K, ...]``, or ``[B, K, ...]`` with `rows`."""
        output = output_of(outputs, self.output)
        shape = output.shape if rows else output.shape[1:]
        if self.task != "classes" or len(shape) < 2:
            return
        self.classes = shape[-1] if self.class_axis == -1 else shape[1]
        self.warn_if_ambiguous(shape[1], tuple(shape[2:]))

    def warn_if_ambiguous(self, classes: int, others: tuple[int, ...]) -> None:
        """Warns once if outputs are ``[B, K, K]``, where either axis may be the class axis."""
        if self.class_axis is None and others == (classes,):
            self.class_axis = 1
            warnings.warn(
                f"outputs are [B, {classes}, {classes}]: axis 1 is taken for classes. Pass class_axis=1 to confirm, or "
                "class_axis=-1 if classes are the last axis",
                stacklevel=2,
            )


def _scalar(loss: Any) -> Tensor:
    """Checks that a criterion returned one number."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        kind = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise InputError(f"the criterion must return a tensor with one number, but returns {kind}: use reduction='mean'")
    return loss.reshape(())
