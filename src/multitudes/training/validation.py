"""Validation: scores the ensemble after each epoch, and keeps the weights of the best epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from multitudes.data.batches import Split, batched, input_and_target
from multitudes.data.dataset import Data
from multitudes.data.labels import IGNORED, UNLABELLED, as_classes, labelled
from multitudes.engine.sharding import full_tensor
from multitudes.ensemble import Ensemble
from multitudes.errors import InputError
from multitudes.prediction.predict import predict, refuse_batches
from multitudes.prediction.prediction import Prediction
from multitudes.prediction.targets import checked_targets
from multitudes.prediction.values import CLASSES
from multitudes.scores.columns import classification_evidence, regression_evidence
from multitudes.scores.evidence import Settings
from multitudes.training.criterion import TaskCriterion
from multitudes.training.feed import explain_inputs, ignore_of


@dataclass
class Validator:
    """Scores ensembles on the validation set, with the output name, class axis and `ignore` of the criterion."""

    data: Any
    criterion: TaskCriterion
    split: Split | None = None

    def __call__(self, ensemble: Ensemble, amp: bool | torch.dtype = False) -> tuple[dict[str, float], Tensor]:
        """Returns the scores of the ensemble by name, and one score per member ``[M]``, larger for better."""
        return self._score(self._predict(ensemble, self.data, amp, self.split))

    def _predict(self, ensemble: Ensemble, data: Any, amp: bool | torch.dtype, split: Split | None) -> Prediction:
        axis, output = self.criterion.class_axis or 1, self.criterion.output
        return predict(ensemble, data, batch_size=512, amp=amp, progress=False, split=split, output=output, class_axis=axis)

    def _score(self, prediction: Prediction) -> tuple[dict[str, float], Tensor]:
        prediction.targets = self.criterion.mark_ignored(prediction.targets, maybe_probabilities=False)
        return validate(prediction, UNLABELLED if prediction.task in CLASSES else None)

    def check(self, ensemble: Ensemble) -> None:
        """Checks the validation set before training: predicts two examples, and reads all targets that are in memory."""
        self._check_kind(ensemble)
        first = next(batched(self.data, 2, ensemble.engine.batch_axis, self.split or input_and_target)[1], None)
        if first is None:
            raise InputError("val= has no examples: give at least one, or leave val= out")
        inputs, targets = first
        with explain_inputs(ensemble, inputs, False, "val= has"):
            prediction = self._predict(ensemble, iter([first]), False, None)
        has_labels = prediction.task in CLASSES
        if prediction.task == "classes":
            self.criterion.warn_if_ambiguous(prediction.classes, tuple(prediction.shape[1:]))
        try:
            if has_labels:
                self._check_targets(prediction.classes)
                marked = self.criterion.mark_ignored(targets, maybe_probabilities=False)
            if targets is None or not has_labels or bool(labelled(marked).any()):
                self._score(prediction)
        except InputError as error:
            raise InputError(f"val=: {error}") from error

    def _check_kind(self, ensemble: Ensemble) -> None:
        val, ignore = self.data, ignore_of(self.data)
        if isinstance(val, Iterator):
            raise InputError("val= is an iterator, which can be read only once: pass a dataset or a dataloader")
        if isinstance(val, (list, tuple)) and val and isinstance(val[0], (Data, Dataset)):
            raise InputError("val= takes one dataset, not one per member")
        if isinstance(val, list) and val and self.split is None:
            refuse_batches(val[0], ensemble)
        if ignore is not None and ignore != self.criterion.ignore:
            raise InputError(
                f"val= has ignore={ignore}, but training ignores {self.criterion.ignore}: pass fit(..., ignore={ignore})"
            )

    def _check_targets(self, classes: int) -> None:
        """Checks that all targets of a dataset in memory are valid classes, and that not all of them are ignored."""
        val = self.data
        targets = val.targets if isinstance(val, Data) else val.tensors[-1] if isinstance(val, TensorDataset) else None
        if targets is None or self.split is not None:
            return
        marked = self.criterion.mark_ignored(targets.cpu(), maybe_probabilities=False)
        if bool((as_classes(marked, classes, UNLABELLED) == IGNORED).all()):
            raise InputError("all its targets are ignored labels: give examples with other labels")


def validate(prediction: Prediction, ignore: int | None = None) -> tuple[dict[str, float], Tensor]:
    """Returns the validation scores by name, and one score per member ``[M]``, larger for better.

    Targets equal to `ignore` do not count.
    """
    targets = checked_targets(prediction, ignore=ignore)
    if prediction.task in CLASSES:
        columns = classification_evidence(prediction, targets, Settings()).columns
        scores = {"val_accuracy": _mean(columns["correct"]), "val_nll": _mean(columns["nll"])}
        return scores, columns["member_correct"].double().mean(0)
    columns = regression_evidence(prediction, targets, Settings()).columns
    scores = {"val_rmse": _mean(columns["squares"]) ** 0.5}
    if "log_density" in columns:
        scores["val_lpd"] = _mean(columns["log_density"])
    return scores, -columns["member_squares"].double().mean(0)


def selection_score(scores: Mapping[str, float]) -> float:
    """Returns the score that selects the best epoch, larger for better: accuracy, or minus the RMSE."""
    return scores["val_accuracy"] if "val_accuracy" in scores else -scores["val_rmse"]


def _mean(column: Tensor) -> float:
    return float(column.double().mean())


@dataclass
class Best:
    """Score and weights of the best epoch so far, for the whole ensemble or for each member."""

    by: str
    epoch: int | None = None
    value: list[float] = field(default_factory=list)
    state: dict[str, Tensor] = field(default_factory=dict)

    def update(self, ensemble: Ensemble, epoch: int, scores: Mapping[str, float], each: Tensor) -> bool:
        """Copies the weights of the ensemble, or of each member, whose score is the best so far. Returns whether any was."""
        values = [selection_score(scores)] if self.by == "ensemble" else each.tolist()
        before = self.value or [float("-inf")] * len(values)
        better = [m for m, (new, old) in enumerate(zip(values, before, strict=True)) if new > old]
        if not better:
            return False
        tensors = {name: full_tensor(tensor.detach()).cpu() for name, tensor in ensemble.state_dict().items()}
        if self.by == "ensemble" or not self.state:
            self.state = {name: tensor.clone() for name, tensor in tensors.items()}
        else:
            for name, tensor in tensors.items():
                self.state[name][better] = tensor[better]
        self.value = [max(new, old) for new, old in zip(values, before, strict=True)]
        self.epoch = epoch
        return True

    def described(self) -> dict[str, Any]:
        """Returns everything but the weights, as JSON."""
        return {"by": self.by, "epoch": self.epoch, "value": self.value}


def best_by(ensemble: Ensemble, by: str) -> Best:
    """Returns an empty Best. With by="members", checks that there are several members, which share no weights."""
    if by == "members":
        shared = [name for name in ensemble.state_dict() if name not in ensemble.engine.owned]
        if shared or ensemble.members == 1:
            why = f"shares {', '.join(shared[:3])}" if shared else "has one member"
            raise InputError(
                f"Recipe(best='members') needs several members that share no weights, but {type(ensemble.method).__name__} "
                f"{why}: take best='ensemble'"
            )
    return Best(by)
