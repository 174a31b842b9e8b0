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
from torch.utils.data import TensorDataset

from multitudes.data.dataset import Data
from multitudes.ensemble import Ensemble
from multitudes.errors import InputError, RunError
from multitudes.inputs import Inputs
from multitudes.losses import CRITERIA, UNLABELLED, check_classes, check_labels, labelled
from multitudes.method import Criterion
from multitudes.predict import Split, batched, pair, predict
from multitudes.prediction import Prediction
from multitudes.targets import as_classes
from multitudes.tasks import output_of
from multitudes.validate import validate


@dataclass
class Judge:
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
    weight: Tensor | None = None
    """Of a step in several parts or processes, how many labels this part has for each of an average one."""
    classes: int | None = None
    """How many there are, once that is known."""

    def __post_init__(self) -> None:
        if self.class_axis is not None and (isinstance(self.class_axis, bool) or self.class_axis not in (1, -1)):
            raise InputError(f"class_axis={self.class_axis!r}: 1, or -1 for tokens [B, T, K]")

    def __call__(self, outputs: Any, target: Any) -> Tensor:
        """The loss of one member's outputs."""
        if self.own is not None:
            return self.own(outputs, target)
        found = output_of(outputs, self.output)
        if self.task == "classes" and self.class_axis == -1:
            found = found.movedim(-1, 1)
        loss = CRITERIA[self.task](found, target)
        return loss if self.weight is None else loss * self.weight

    @property
    def counts_labels(self) -> bool:
        """Whether the loss is a mean over what has a label."""
        return self.own is None and self.task == "classes"

    def settings(self) -> dict[str, Any]:
        """By what it is known again, as JSON."""
        own = None if self.own is None else getattr(self.own, "__qualname__", type(self.own).__name__)
        return {"criterion": own, "output": self.output, "class_axis": self.class_axis, "ignore": self.ignore}

    def marked(self, target: Any) -> Any:
        """Targets of classes with what is to be ignored as torch marks it."""
        if self.ignore is None or self.task != "classes" or not isinstance(target, Tensor) or target.is_floating_point():
            return target
        labels = target.long()
        return torch.where(labels == self.ignore, UNLABELLED, labels)

    def parts(self, batches: Iterator[Any], count: int, fabric: Any, per_member: bool) -> Iterator[tuple[Any, Any]]:
        """The parts of a step; where some entries have no label, all count the same in whichever part and process they are."""
        some = ((call, self.marked(target) if self.own is None else target) for call, target in islice(batches, count))
        alone = count == 1 and fabric.world_size == 1
        if alone or per_member or not self.counts_labels:
            yield from some
            return
        known = list(some)
        labels = [labelled(t).double() for _, t in known if isinstance(t, Tensor) and not t.is_floating_point()]
        if len(labels) < count:  # probabilities of classes
            yield from known
            return
        mean = fabric.all_reduce(torch.stack(labels).mean(), reduce_op="mean").clamp(min=1 / count)
        for part, here in zip(known, labels, strict=True):
            self.weight = here / mean
            yield part
        self.weight = None

    def check(self, target: Tensor) -> None:
        """Targets that mean nothing are refused, before they reach a GPU, which would die of them or learn nonsense."""
        if self.counts_labels and self.classes is not None:
            check_classes(target, self.classes, UNLABELLED if self.ignore is None else self.ignore)
        elif self.own is None and self.task in ("binary", "multilabel"):
            check_labels(target)

    def see(self, outputs: Any, rows: bool) -> None:
        """Takes from members' first outputs how many classes there are."""
        found = output_of(outputs, self.output)
        shape = found.shape if rows else found.shape[1:]
        if self.task != "classes" or len(shape) < 2:
            return
        self.classes = shape[-1] if self.class_axis == -1 else shape[1]
        self._doubt(shape[1], tuple(shape[2:]))

    def _doubt(self, classes: int, others: tuple[int, ...]) -> None:
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
        prediction.targets = self.marked(prediction.targets)
        return validate(prediction, UNLABELLED if self.task == "classes" else None)

    def try_validation(self, ensemble: Ensemble, val: Any) -> None:
        """A few examples of the validation set and all of its targets, before an epoch is spent: what is wrong is said now."""
        if isinstance(val, Iterator):
            raise InputError("val= is read after each epoch, and an iterator can be read once: give a dataset or a loader")
        if isinstance(val, (list, tuple)) and val and isinstance(val[0], (Data, torch.utils.data.Dataset)):
            raise InputError("val= is one set for all members, and these are several: members' own are for training alone")
        inputs, targets = next(batched(val, 2, ensemble.engine.batch_axis, self.split or pair)[1])
        with explained(ensemble, inputs, False, "val= has"):
            prediction = replace(self, split=None).predicted(ensemble, iter([(inputs, targets)]))
            if self.task != "classes" or targets is None or bool((self.marked(targets) != UNLABELLED).any()):
                self.validated(prediction)
        if self.task == "classes":
            self._doubt(prediction.classes, tuple(prediction.shape[1:]))
        known = val.targets if isinstance(val, Data) else val.tensors[-1] if isinstance(val, TensorDataset) else None
        if self.split is None and known is not None and self.task in ("classes", "binary", "multilabel"):
            try:
                as_classes(self.marked(known.cpu()), prediction.classes, UNLABELLED if self.task == "classes" else None)
            except InputError as error:
                raise InputError(f"val=: {error}") from error


def ignored_by(train: Any) -> int | None:
    """What a training set itself says has no label."""
    first = train[0] if isinstance(train, Sequence) and len(train) and not isinstance(train, (str, Data)) else train
    return first.ignore if isinstance(first, Data) else None


@contextlib.contextmanager
def explained(ensemble: Ensemble, call: Inputs, own: bool, who: str = "the training set has") -> Iterator[None]:
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
