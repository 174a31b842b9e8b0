"""Validation: scores the ensemble after each epoch, keeps the weights of the best epoch, and notices a leap."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from multitudes.data.batches import Unpack, batched
from multitudes.data.dataset import Data, ignore_of
from multitudes.data.labels import IGNORED, UNLABELLED, as_classes, check_finite, first_not_finite, labelled
from multitudes.engine.inputs import axes, count_rows
from multitudes.engine.sharding import full_tensor
from multitudes.ensemble import Ensemble
from multitudes.errors import InputError, RunError
from multitudes.files.old_settings import current_score
from multitudes.prediction.predict import predict, refuse_batches
from multitudes.prediction.prediction import Prediction
from multitudes.prediction.targets import checked_targets
from multitudes.prediction.temperature import Calibrator, calibrate
from multitudes.prediction.uncertainty import log_normal
from multitudes.prediction.values import CLASSES
from multitudes.scores.columns import classification_evidence, regression_evidence
from multitudes.scores.evidence import Settings
from multitudes.terminal import curve
from multitudes.training.criterion import TaskCriterion
from multitudes.training.recipe import Recipe


@dataclass
class Validator:
    """Scores ensembles on the validation set, with the output name, class axis and `ignore` of the criterion."""

    data: Any
    criterion: TaskCriterion
    unpack: Unpack | None = None

    def __post_init__(self) -> None:
        """Refuses what is no dataset: a share, or inputs and targets that are not put together."""
        line = "a dataset, as TensorDataset(x, y), or a DataLoader"
        if isinstance(self.data, (int, float)):
            line = "held-out data, train, val = torch.utils.data.random_split(dataset, [0.8, 0.2])"
        elif self.unpack is None and isinstance(self.data, tuple) and len(self.data) > 1:
            line = "a dataset, val=torch.utils.data.TensorDataset(*val)"
        elif not isinstance(self.data, (str, Tensor)):
            return
        raise InputError(f"val= is a {type(self.data).__name__}: give {line}")

    def __call__(self, ensemble: Ensemble, amp: bool | torch.dtype = False) -> tuple[dict[str, float], dict[str, Tensor]]:
        """Returns the scores of the ensemble, and those of each member ``[M]``, both by name."""
        return self._score(self._predict(ensemble, self.data, amp, self.unpack))

    def check_calibrates(self, ensemble: Ensemble) -> None:
        """Checks that there is something to calibrate: probabilities or variances."""
        if ensemble.task not in CLASSES and not has_density(ensemble):
            raise InputError(
                "calibrate=True scales variances, but task 'regression' predicts none: convert with task='gaussian', or leave "
                "calibrate= out"
            )

    def calibrator(self, ensemble: Ensemble) -> Calibrator:
        """Fits the calibrator of an ensemble that has none."""
        prediction = self._marked(self._predict(ensemble, self.data, False, self.unpack))
        return calibrate(prediction, ignore=UNLABELLED if prediction.task in CLASSES else None)

    def _predict(self, ensemble: Ensemble, data: Any, amp: bool | torch.dtype, unpack: Unpack | None) -> Prediction:
        axis, output = self.criterion.class_axis or 1, self.criterion.output
        options: dict[str, Any] = {"progress": False, "unpack": unpack, "output": output, "class_axis": axis}
        try:
            return predict(ensemble, data, batch_size=512, amp=amp, **options)
        except (InputError, RunError) as error:
            if fault := self._fault(ensemble):
                raise InputError(f"val= has {fault}: remove or replace it") from error
            raise

    def _fault(self, ensemble: Ensemble) -> str:
        """Names the first NaN or infinite value in the inputs of the validation set; "" if there is none."""
        axis, seen = ensemble.engine.batch_axis, 0
        for inputs, _ in batched(self.data, 512, axis, self.unpack, ensemble.call_form)[1]:
            for tensor, place in zip(inputs.tensors(), axes(inputs, axis), strict=True):
                at = first_not_finite(tensor)
                if at is not None:
                    value = "a NaN" if bool(tensor[at].isnan()) else "an infinite value"
                    return f"{value} in the inputs{f' of example {seen + at[0]}' if place == 0 else ''}"
            seen += count_rows(inputs, axis)
        return ""

    def _marked(self, prediction: Prediction) -> Prediction:
        prediction.targets = self.criterion.mark_ignored(prediction.targets, maybe_probabilities=False)
        return prediction

    def _score(self, prediction: Prediction) -> tuple[dict[str, float], dict[str, Tensor]]:
        try:
            return validate(self._marked(prediction), UNLABELLED if prediction.task in CLASSES else None)
        except InputError as error:
            raise InputError(f"val=: {error}") from error

    def check(self, ensemble: Ensemble) -> None:
        """Checks the validation set before training: predicts two examples, and reads all targets that are in memory."""
        self._check_kind(ensemble)
        first = next(batched(self.data, 2, ensemble.engine.batch_axis, self.unpack, ensemble.call_form)[1], None)
        if first is None:
            raise InputError("val= has no examples: give at least one, or leave val= out")
        targets = first[1]
        try:
            prediction = self._predict(ensemble, iter([first]), False, None)
        except RunError as error:
            raise RunError(f"val=: {error}") from error
        has_labels = prediction.task in CLASSES
        if prediction.task == "classes":
            self.criterion.warn_if_ambiguous(prediction.classes, tuple(prediction.shape[1:]))
        try:
            self._check_targets(prediction.classes if has_labels else None)
        except InputError as error:
            raise InputError(f"val=: {error}") from error
        marked = self.criterion.mark_ignored(targets, maybe_probabilities=False) if has_labels else None
        if marked is None or bool(labelled(marked).any()):
            self._score(prediction)

    def _check_kind(self, ensemble: Ensemble) -> None:
        val, ignore = self.data, ignore_of(self.data)
        if isinstance(val, Iterator):
            raise InputError("val= is an iterator, which can be read only once: pass a dataset or a dataloader")
        if isinstance(val, (list, tuple)) and val and isinstance(val[0], (Data, Dataset)):
            raise InputError("val= takes one dataset, not one per member")
        if isinstance(val, list) and val and self.unpack is None:
            refuse_batches(val[0], ensemble)
        if ignore is not None and ignore != self.criterion.ignore:
            raise InputError(
                f"val= has ignore={ignore}, but training ignores {self.criterion.ignore}: pass fit(..., ignore={ignore})"
            )

    def _check_targets(self, classes: int | None) -> None:
        """Checks that all targets of a dataset in memory are finite, or valid classes that are not all ignored."""
        val = self.data
        targets = val.targets if isinstance(val, Data) else val.tensors[-1] if isinstance(val, TensorDataset) else None
        if targets is None or self.unpack is not None:
            return
        if classes is None:
            check_finite(targets)
            return
        marked = self.criterion.mark_ignored(targets.cpu(), maybe_probabilities=False)
        if bool((as_classes(marked, classes, None) == IGNORED).all()):
            raise InputError("all its targets are ignored labels: give examples with other labels")


def validate(prediction: Prediction, ignore: int | None = None) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Returns the validation scores of the ensemble by name, such as "val_nll", and those of each member ``[M]``.

    Targets equal to `ignore` do not count. Densities are those of the prediction's Gaussians, whatever the criterion was.
    """
    targets = checked_targets(prediction, ignore=ignore)
    if prediction.task in CLASSES:
        columns = classification_evidence(prediction, targets, Settings()).columns
        scores = {"val_accuracy": _mean(columns["correct"]), "val_nll": _mean(columns["nll"])}
        each = {"val_accuracy": columns["member_correct"], "val_nll": columns["member_nll"]}
        return scores, {name: column.double().mean(0) for name, column in each.items()}
    columns = regression_evidence(prediction, targets, Settings()).columns
    scores, each = {"val_rmse": _mean(columns["squares"]) ** 0.5}, {}
    each["val_rmse"] = columns["member_squares"].double().mean(0).sqrt()
    if "log_density" in columns:
        scores["val_nll"] = -_mean(columns["log_density"])
        mean, variance = (prediction.members[name].double().cpu() for name in ("mean", "variance"))
        each["val_nll"] = -log_normal(targets.double(), mean, variance).flatten(1).mean(1)
    return scores, each


def _mean(column: Tensor) -> float:
    return float(column.double().mean())


RISING = {"nll": False, "accuracy": True, "rmse": False}
"""The scores by which an epoch can be the best, and whether larger ones are better."""


def has_density(ensemble: Ensemble) -> bool:
    """Checks whether the ensemble's predictions are numbers with a variance."""
    known = getattr(ensemble.method, "tau_output", None) is not None
    return ensemble.task == "gaussian" or (ensemble.task == "regression" and known)


def score_of(ensemble: Ensemble, recipe: Recipe) -> str:
    """Returns the score that selects the best epoch: `recipe.best_by`, or the proper score of the task."""
    densities = ["nll"] if has_density(ensemble) else []
    known = ["nll", "accuracy"] if ensemble.task in CLASSES else [*densities, "rmse"]
    if recipe.best_by is not None and recipe.best_by not in known:
        rest = " without variances" if recipe.best_by == "nll" and ensemble.task == "regression" else ""
        others = " or ".join(map(repr, known))
        raise InputError(f"Recipe(best_by={recipe.best_by!r}): task {ensemble.task!r}{rest} has no such score: take {others}")
    return recipe.best_by or known[0]


@dataclass
class Best:
    """Score and weights of the best epoch so far, for the whole ensemble or for each member."""

    by: str
    """"ensemble" or "members"."""
    score: str
    """The score that selects, one of `RISING`."""
    epoch: int | None = None
    value: list[float] = field(default_factory=list)
    """The best score, or that of each member; larger for better, so with a minus sign for an NLL."""
    state: dict[str, Tensor] = field(default_factory=dict)

    def update(self, ensemble: Ensemble, epoch: int, scores: Mapping[str, float], each: Mapping[str, Tensor]) -> bool:
        """Copies the weights of the ensemble, or of each member, whose score is the best so far. Returns whether any was.

        Of methods that make members of a whole run, the last epoch is the best one: before it, members are not all there.
        """
        name, sign = f"val_{self.score}", 1 if RISING[self.score] else -1
        values = [sign * scores[name]] if self.by == "ensemble" else (sign * each[name]).tolist()
        whole = ensemble.method.made_in_training
        before = self.value if self.value and not whole else [float("-inf")] * len(values)
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
        return {"by": self.by, "score": self.score, "epoch": self.epoch, "value": self.value}


LEAP, FLOOR, CALM, FAR = 10, 1.5, 4, 10
"""A leap is as large as 10 usual changes from epoch to epoch, and as 1.5 nats or as the best RMSE; at least 4 epochs tell. 10
nats and as much as the best NLL, or 10 times the best RMSE, are a leap in any epoch, and 10 nats and as much as the lowest loss
in any step of training."""


def leap(history: Sequence[Mapping[str, float]], score: str, start: float = 0) -> str:
    """Says that the last epoch's validation is far worse than the best so far, all at once; "" if it is not.

    history   the lines of all epochs
    score     the name of the score in `RISING`; for accuracy the NLL is looked at
    start     the epochs of warm-up, which do not count
    """
    name = "nll" if score == "accuracy" else score
    values = [line[f"val_{name}"] for line in history[math.ceil(start) :]]
    if len(values) < 2:
        return ""
    *before, last = values
    best = min(before)
    if not _is_lost(last, best, name) and not (len(values) > CALM and _is_sudden(before, last, best, name)):
        return ""
    return (
        f"the validation {name.upper()} leapt to {last:.4g} in epoch {history[-1]['epoch']}, from {best:.4g} at "
        "its best: training may be diverging. Try a smaller lr, clip= or warmup= in the Recipe"
    )


def _is_lost(last: float, best: float, name: str) -> bool:
    """Whether the score is so much worse than the best that no ordinary training recovers."""
    return math.isnan(last) or last - best > (FAR * best if name == "rmse" else max(FAR, abs(best)))


def _is_sudden(before: Sequence[float], last: float, best: float, name: str) -> bool:
    """Whether the score is far worse than the best, and most of that came in the last epoch."""
    usual = statistics.median(abs(b - a) for a, b in pairwise(before))
    is_far = last - best > max(LEAP * usual, best if name == "rmse" else FLOOR)
    return is_far and last - before[-1] >= (last - best) / 2


class LossWatch:
    """Notices that the loss of training steps leaps, also in the first epoch, and without a validation set.

    It looks at losses in nats: those of labels and of Gaussians, by the task's criterion.
    """

    def __init__(self, ensemble: Ensemble, criterion: TaskCriterion) -> None:
        self.applies = ensemble.task != "regression" and criterion.custom is None
        self.share = 1 / ensemble.members if ensemble.method.reduction == "sum" else 1.0
        """The factor by which the loss of a step is that of a member."""
        self.best = math.inf

    def look(self, loss: float, epoch: int, step: int) -> str:
        """Says that a member's loss is more than `FAR` nats above the lowest so far, and twice as high; "" if it is not."""
        now, self.best = loss * self.share, min(self.best, loss * self.share)
        if not self.applies or not now - self.best > max(FAR, abs(self.best)):
            return ""
        return (
            f"the training loss of a member leapt to {now:.4g} in step {step} of epoch {epoch}, from {self.best:.4g} at its "
            "best: training may be diverging. Try a smaller lr, clip= or warmup= in the Recipe"
        )


def empty_best(ensemble: Ensemble, recipe: Recipe) -> Best:
    """Returns a Best without an epoch. With best="members", checks that there are several members, which share no weights."""
    if recipe.best == "members":
        shared = [name for name in ensemble.state_dict() if name not in ensemble.engine.owned]
        if shared or ensemble.members == 1:
            why = f"shares {', '.join(shared[:3])}" if shared else "has one member"
            raise InputError(
                f"Recipe(best='members') needs several members that share no weights, but {type(ensemble.method).__name__} "
                f"{why}: take best='ensemble'"
            )
    return Best(recipe.best, score_of(ensemble, recipe))


def restored_best(about: Mapping[str, Any], state: dict[str, Tensor], task: str) -> Best:
    """Returns the Best of a checkpoint. In checkpoints of runs from before `best_by`, it was chosen by accuracy or RMSE."""
    best = Best(**{"score": "accuracy" if task in CLASSES else "rmse", **about}, state=state)
    return replace(best, score=current_score(best.score))


def curves(metrics: Sequence[Mapping[str, float]]) -> str:
    """Returns the last validation scores, and curves of those of all epochs, as a line."""
    scores = {name: [line[f"val_{name}"] for line in metrics if f"val_{name}" in line] for name in RISING}
    return "  ".join(f"{name} {values[-1]:.4f} {curve(values)}" for name, values in scores.items() if values)
