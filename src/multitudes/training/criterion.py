"""Judging: what outputs and targets mean, in the loss of a step and in the validation of an epoch."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from multitudes.data.batches import Split, batched, input_and_target
from multitudes.data.dataset import Data
from multitudes.engine.inputs import Inputs
from multitudes.ensemble import Ensemble
from multitudes.errors import InputError, RunError
from multitudes.method import Criterion
from multitudes.prediction.predict import predict, refuse_batches
from multitudes.prediction.prediction import Prediction
from multitudes.prediction.targets import IGNORED, UNLABELLED, as_classes
from multitudes.prediction.tasks import output_of
from multitudes.prediction.values import CLASSES
from multitudes.training.fingerprint import criterion_fingerprint
from multitudes.training.losses import CRITERIA, check_classes, check_labels, labelled
from multitudes.training.validation import validate


@dataclass
class TaskCriterion:
    """A criterion, criterion(output, target), which is the caller's own or the task's."""

    task: str
    own: Criterion | None = None
    output: str | None = None
    """Which of several outputs is meant."""
    class_axis: int | None = None
    """The axis of classes in one network's output."""
    ignore: int | None = None
    """The target of what has no label."""
    split: Split | None = None
    weights: Sequence[Tensor] = ()
    """Of a step in several parts or processes, how many labels this part has for each of an average one; for members with
    batches of their own each one's, in turn."""
    turn: int = 0
    classes: int | None = None
    """How many there are, once that is known."""

    def __post_init__(self) -> None:
        if self.class_axis is not None and (isinstance(self.class_axis, bool) or self.class_axis not in (1, -1)):
            raise InputError(f"class_axis={self.class_axis!r}: 1, or -1 for tokens [B, T, K]")
        if self.own is not None and not callable(self.own):
            raise InputError(f"criterion={self.own!r}: give a loss(output, target), such as nn.CrossEntropyLoss()")
        if self.ignore is not None and self.task not in CLASSES:
            raise InputError(f"ignore={self.ignore} is for labels, and the task is {self.task}: leave such examples out")

    def __call__(self, outputs: Any, target: Any) -> Tensor:
        """The loss of one member's outputs."""
        if self.own is not None:
            return _one_number(self.own(outputs, target))
        found = output_of(outputs, self.output)
        if self.task == "classes" and self.class_axis == -1:
            found, target = found.movedim(-1, 1), self._classes_second(target)
        loss = CRITERIA[self.task](found, target)
        if not self.weights:
            return loss
        self.turn += 1
        return loss * self.weights[(self.turn - 1) % len(self.weights)]

    def _classes_second(self, target: Any) -> Any:
        """Probabilities of classes, which lie as outputs do."""
        soft = isinstance(target, Tensor) and target.is_floating_point() and target.ndim > 2 and self.class_axis == -1
        return target.movedim(-1, 1) if soft else target

    @property
    def counts_labels(self) -> bool:
        """Whether the loss is a mean over what has a label."""
        return self.own is None and self.task in CLASSES

    def settings(self) -> dict[str, Any]:
        """By what it is known again, as JSON."""
        own = None if self.own is None else criterion_fingerprint(self.own)
        return {"criterion": own, "output": self.output, "class_axis": self.class_axis or 1, "ignore": self.ignore}

    def mark_ignored(self, target: Any, soft: bool = True) -> Any:
        """Targets with what is to be ignored as torch marks it; where they may be `soft`, not in probabilities of classes."""
        if self.ignore is None or not isinstance(target, Tensor) or (soft and self._soft(target)):
            return target
        labels = target if target.is_floating_point() else target.long()
        return torch.where(labels == self.ignore, UNLABELLED, labels)

    def _soft(self, target: Tensor) -> bool:
        """Whether targets are probabilities of classes, each of which has a label."""
        return self.task == "classes" and target.is_floating_point()

    def weighted_parts(self, batches: Iterator[Any], count: int, fabric: Any, per_member: bool) -> Iterator[tuple[Any, Any]]:
        """The parts of a step; where some entries have no label, all count the same in whichever part and process they are."""
        some = ((call, self.mark_ignored(target) if self.own is None else target) for call, target in islice(batches, count))
        alone = count == 1 and fabric.world_size == 1
        if alone or not self.counts_labels:
            yield from some
            return
        known = list(some)
        labels = torch.stack([self._count(target, per_member) for _, target in known])  # [parts, members or 1]
        mean = fabric.all_reduce(labels.mean(0), reduce_op="mean").clamp(min=1 / (count * fabric.world_size))
        for part, weights in zip(known, labels / mean, strict=True):
            self.weights, self.turn = weights.unbind(), 0
            yield part
        self.weights = ()

    def _count(self, target: Any, per_member: bool) -> Tensor:
        """How many labels there are, for all members or for each, as ``[1]`` or ``[M]``."""
        if not isinstance(target, Tensor):
            raise InputError(
                f"targets are a {type(target).__name__}, and the task {self.task!r} takes a tensor: split=, criterion="
            )
        known = labelled(target)
        if self._soft(target):
            known = known.select(-1 if self.class_axis == -1 else 1 + per_member, 0)
        return known.flatten(1).sum(1).double() if per_member else known.sum().double()[None]

    def check(self, target: Tensor) -> None:
        """Targets that mean nothing are refused, before they reach a GPU, which would die of them or learn nonsense."""
        ignored = UNLABELLED if self.ignore is None else self.ignore
        if self.own is not None:
            return
        if self.task == "classes" and self.classes is not None:
            check_classes(self._classes_second(target), self.classes, ignored)
        elif self.task in ("binary", "multilabel"):
            check_labels(target, ignored)
        elif self.task not in CLASSES and not bool(target.isfinite().all()):
            raise InputError("a target is NaN or infinite")

    def learn_classes(self, outputs: Any, rows: bool) -> None:
        """Takes from members' first outputs how many classes there are."""
        found = output_of(outputs, self.output)
        shape = found.shape if rows else found.shape[1:]
        if self.task != "classes" or len(shape) < 2:
            return
        self.classes = shape[-1] if self.class_axis == -1 else shape[1]
        self._warn_axis(shape[1], tuple(shape[2:]))

    def _warn_axis(self, classes: int, others: tuple[int, ...]) -> None:
        """Where classes might as well be the last axis, what they are taken for is said, once."""
        if self.class_axis is None and others == (classes,):
            self.class_axis = 1
            warnings.warn(
                f"outputs are [B, {classes}, {classes}]: axis 1 is taken for that of classes, as class_axis=1 says; "
                "where it is the last, class_axis=-1",
                stacklevel=2,
            )

    def predicted(self, ensemble: Ensemble, val: Any, amp: bool | torch.dtype = False) -> Prediction:
        """The answers to a validation set."""
        axis = 1 if self.class_axis is None else self.class_axis
        return predict(
            ensemble, val, batch_size=512, amp=amp, progress=False, split=self.split, output=self.output, class_axis=axis
        )

    def validated(self, prediction: Prediction) -> tuple[dict[str, float], Tensor]:
        """The scores of an epoch, and each member's own."""
        prediction.targets = self.mark_ignored(prediction.targets, soft=False)
        return validate(prediction, UNLABELLED if self.task in CLASSES else None)

    def try_validation(self, ensemble: Ensemble, val: Any) -> None:
        """A few examples of the validation set and all of its targets, before an epoch is spent: what is wrong is said now."""
        if isinstance(val, Iterator):
            raise InputError("val= is read after each epoch, and an iterator can be read once: give a dataset or a loader")
        if isinstance(val, (list, tuple)) and val and isinstance(val[0], (Data, torch.utils.data.Dataset)):
            raise InputError("val= is one set for all members, and these are several: members' own are for training alone")
        if isinstance(val, list) and val and self.split is None:
            refuse_batches(val[0], ensemble)
        said = ignored_by(val)
        if said is not None and said != self.ignore:
            raise InputError(
                f"val= says ignore={said}, and training ignores {self.ignore}: fit(..., ignore={said}) says so of both"
            )
        first = next(batched(val, 2, ensemble.engine.batch_axis, self.split or input_and_target)[1], None)
        if first is None:
            raise InputError("val= has no examples")
        inputs, targets = first
        with explain_inputs(ensemble, inputs, False, "val= has"):
            prediction = replace(self, split=None).predicted(ensemble, iter([(inputs, targets)]))
        if self.task == "classes":
            self._warn_axis(prediction.classes, tuple(prediction.shape[1:]))
        try:
            self._all_targets(val, prediction.classes if self.task in CLASSES else 0)
            if targets is None or self.task not in CLASSES or bool(labelled(self.mark_ignored(targets, soft=False)).any()):
                self.validated(prediction)
        except InputError as error:
            raise InputError(f"val=: {error}") from error

    def _all_targets(self, val: Any, classes: int) -> None:
        """Of a set in memory all targets are classes, and some of them labels."""
        known = val.targets if isinstance(val, Data) else val.tensors[-1] if isinstance(val, TensorDataset) else None
        if known is None or self.split is not None or not classes:
            return
        if bool((as_classes(self.mark_ignored(known.cpu(), soft=False), classes, UNLABELLED) == IGNORED).all()):
            raise InputError("nothing in it has a label")


def ignored_by(given: Any) -> int | None:
    """What sets themselves say has no label, if they agree."""
    found = {one.ignore for one in _sets_of(given)}
    if len(found) > 1:
        raise InputError(
            f"training sets ignore {' and '.join(sorted(map(str, found)))}: fit(..., ignore=...) says what all ignore"
        )
    return next(iter(found), None)


def _sets_of(given: Any) -> list[Data]:
    """The Data that a set, parts of it, or several are made of."""
    if isinstance(given, Data):
        return [given]
    if isinstance(given, Subset):
        return _sets_of(given.dataset)
    parts = given if isinstance(given, (list, tuple)) else given.datasets if isinstance(given, ConcatDataset) else ()
    return [one for part in parts if isinstance(part, Dataset) for one in _sets_of(part)]


def _one_number(loss: Any) -> Tensor:
    """What a criterion gives, if that can be a loss."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        shown = f"{list(loss.shape)} numbers" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise InputError(f"the criterion gives {shown} and not one: a tensor of one, as reduction='mean' gives")
    return loss.reshape(())


@contextlib.contextmanager
def explain_inputs(ensemble: Ensemble, call: Inputs, own: bool, who: str = "the training set has") -> Iterator[None]:
    """Where inputs are not like those that the ensemble was made for, and it fails, that is said."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        here, example = call.tensors(), Inputs.like(ensemble.plan.example, torch.device("meta")).tensors()
        alike = len(here) == len(example) and all(
            a.dtype == b.dtype and a.shape[1 + own :] == b.shape[1:] for a, b in zip(here, example, strict=True)
        )
        if alike or isinstance(error, InputError):
            raise
        raise RunError(f"{who} {call}, and the ensemble was made for {Inputs(*example)}: {error}") from error
