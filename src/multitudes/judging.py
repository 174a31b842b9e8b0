"""Judging: what outputs and targets mean, in the loss of a step and in the validation of an epoch."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from multitudes.data.dataset import Data
from multitudes.ensemble import Ensemble
from multitudes.errors import InputError, RunError
from multitudes.inputs import Inputs
from multitudes.losses import CRITERIA, UNLABELLED, check_classes, check_labels, class_loss
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
    count: Tensor | None = None
    """Of a step in several parts or processes, how many labels a part has on average."""
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
        if self.task != "classes":
            return CRITERIA[self.task](found, target)
        return class_loss(found.movedim(-1, 1) if self.class_axis == -1 else found, target, self.count)

    @property
    def counts_labels(self) -> bool:
        """Whether the loss is a mean over what has a label."""
        return self.own is None and self.task == "classes"

    def settings(self) -> dict[str, Any]:
        """By what it is known again, as JSON."""
        own = None if self.own is None else getattr(self.own, "__qualname__", type(self.own).__name__)
        return {"criterion": own, "output": self.output, "class_axis": self.class_axis, "ignore": self.ignore}

    def labelled(self, target: Any) -> Any:
        """Targets as the task's own criterion takes them: what is to be ignored as torch marks it."""
        if self.ignore is None or not self.counts_labels or not isinstance(target, Tensor) or target.is_floating_point():
            return target
        return torch.where(target == self.ignore, UNLABELLED, target.long())

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
        return validate(prediction, self._ignored)

    @property
    def _ignored(self) -> int | None:
        """What a validation leaves out: as in training, also what torch takes for no label."""
        return self.ignore if self.ignore is not None or self.task != "classes" else UNLABELLED

    def try_validation(self, ensemble: Ensemble, val: Any) -> None:
        """A few examples of the validation set and all of its targets, before an epoch is spent: what is wrong is said now."""
        if isinstance(val, Iterator):
            raise InputError("val= is read after each epoch, and an iterator can be read once: give a dataset or a loader")
        if isinstance(val, (list, tuple)) and val and isinstance(val[0], (Data, torch.utils.data.Dataset)):
            raise InputError("val= is one set for all members, and these are several: members' own are for training alone")
        inputs, targets = next(batched(val, 2, ensemble.engine.batch_axis, self.split or pair)[1])
        with explained(ensemble, inputs, False, "val= has"):
            prediction = replace(self, split=None).predicted(ensemble, iter([(inputs, targets)]))
            self.validated(prediction)
        if self.task == "classes":
            self._doubt(prediction.classes, tuple(prediction.shape[1:]))
        known = val.targets if isinstance(val, Data) else val.tensors[-1] if isinstance(val, TensorDataset) else None
        if self.split is None and known is not None and self.task in ("classes", "binary", "multilabel"):
            try:
                as_classes(known.cpu(), prediction.classes, self._ignored)
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
