"""distill: trains one network to predict what an ensemble predicts.

Hinton, Vinyals, Dean, "Distilling the Knowledge in a Neural Network", 2015, https://arxiv.org/abs/1503.02531: the student
learns the ensemble's mean probabilities, softened by a temperature T. Malinin, Mlodozeniec, Gales, "Ensemble Distribution
Distillation", ICLR 2020, https://arxiv.org/abs/1905.00076: the student's logits z are the logs of a Dirichlet's parameters. It
learns the distribution of the members' probabilities π_m, and so their disagreement:

    − 1/M Σ_m log Dir(π_m; α),    α = exp(z).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate

from multitudes.conversion.convert import ensemble as convert
from multitudes.data.adapters import of
from multitudes.data.dataset import Data
from multitudes.ensemble import Ensemble
from multitudes.errors import InputError
from multitudes.methods.single import Single
from multitudes.prediction.predict import checked_ensemble, predict
from multitudes.prediction.prediction import Prediction
from multitudes.prediction.targets import IGNORED, checked_targets
from multitudes.prediction.tasks import variance_of
from multitudes.settings import Count, above, between, check_value, takes_names
from multitudes.training.fit import fit
from multitudes.training.recipe import Recipe

SMOOTHING = 1e-4
"""Share of the uniform distribution in members' probabilities, whose logs a Dirichlet needs."""


@takes_names(recipe=Recipe)
def distill(
    ensemble: Ensemble,
    student: nn.Module,
    train: Any,
    recipe: Recipe | None = None,
    *,
    temperature: float = 1.0,
    labels: float = 0.0,
    distribution: bool = False,
    val: Any = None,
    seed: int = 0,
    **options: Any,
) -> Ensemble:
    """Trains a network on the predictions of an ensemble, and returns it as an ensemble of one: `.member(0)` is the network.

    Inputs are those of the training set, without labels unless `labels` is above 0. The ensemble predicts them once, without
    augmentation. For task "gaussian" the student learns mean and variance of the mixture, for "regression" the mean.

    ensemble      the trained ensemble; its calibrator, if there is one, is not applied
    student       the network, which is copied; it starts with its weights
    train         the inputs: a dataset of pairs (input, target), or of (inputs..., target) if the ensemble takes several
    recipe        how to train, as in `fit`
    temperature   for classes, T: members and student are compared as softmax(z / T), and the loss is scaled by T²
    labels        for classes, the share of the usual loss on the labels of the training set
    distribution  for classes: learn the members' distribution; see `dirichlet_members`
    val           dataset that selects the best epoch, as in `fit`
    seed          seed of the conversion
    options       of `fit`, such as out=, callbacks=, progress=
    """
    ensemble = checked_ensemble(ensemble, "distill")
    check_value("temperature", temperature, Annotated[float, above(0)])
    check_value("labels", labels, Annotated[float, between(0, 1)])
    if ensemble.task != "classes" and (temperature != 1.0 or labels or distribution):
        raise InputError(
            f"temperature=, labels= and distribution= are for task 'classes', not {ensemble.task!r}: leave them out"
        )
    if distribution and labels:
        raise InputError("labels= cannot be mixed with distribution=True: the loss is that of a density. Leave one out")
    if distribution and temperature != 1.0:
        raise InputError("distribution=True has no temperature: the draws would be of softened members. Leave one out")
    if "criterion" in options:
        raise InputError("the loss of distill compares student and ensemble: leave criterion= out, or train with mt.fit")
    several = ensemble.call_form.count > 1 and not isinstance(train, Data)
    data = train if several or isinstance(train, Data) else of(train)
    pred = _predict_plain(ensemble, data)
    taught = _taught(pred, temperature, distribution)
    if labels:
        taught = torch.cat([taught, _labels_of(pred).to(taught)[:, None]], 1)
    if ensemble.class_axis == -1:
        taught = taught.movedim(1, -1)
    first = range(min(2, len(taught)))
    if several:
        lesson: Any = Lesson(data, taught)
        example: Any = ensemble.call_form.unpack(default_collate([lesson[i] for i in first]))[0]
    else:
        lesson = replace(data, targets=taught, classes=None)
        example = data.batch(torch.tensor(first))[0]
    single = convert(student, Single(), example, task=ensemble.task, seed=seed, class_axis=ensemble.class_axis)
    criterion = Matching(ensemble.task, temperature, labels, distribution, ensemble.class_axis or 1)
    fit(single, lesson, recipe, val=val, criterion=criterion, **options)
    return single


@dataclass(frozen=True)
class Lesson(Dataset[Any]):
    """A dataset of several inputs, with the student's targets in place of its own."""

    data: Any
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, place: int) -> tuple[Any, ...]:
        item = self.data[place]
        if not isinstance(item, (tuple, list)) or len(item) < 2:
            raise InputError(f"an item is a {type(item).__name__}, but must be a tuple (inputs..., target)")
        return (*item[:-1], self.targets[place])


def dirichlet_members(prediction: Prediction, members: int = 20, seed: int = 0) -> Prediction:
    """Draws members from the Dirichlets that a student of distribution=True predicts: their disagreement is the ensemble's.

    prediction   of the student, by `predict`
    """
    check_value("members", members, Count)
    if prediction.task != "classes" or prediction.count != 1:
        raise InputError("dirichlet_members() takes the prediction of one network of classes, distill(..., distribution=True)")
    alpha = prediction.members.logits[0].double().clamp(-30, 30).exp().movedim(1, -1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        probs = torch.distributions.Dirichlet(alpha.cpu()).sample(torch.Size([members])).clamp(min=1e-30)
    probs = (probs / probs.sum(-1, keepdim=True)).movedim(-1, 2)
    return Prediction(logits=probs.log(), targets=prediction.targets)


def _predict_plain(ensemble: Ensemble, data: Data) -> Prediction:
    """Predicts without the calibrator."""
    calibrator, ensemble.calibrator = ensemble.calibrator, None
    try:
        return predict(ensemble, data, progress=False)
    finally:
        ensemble.calibrator = calibrator


def _labels_of(pred: Prediction) -> Tensor:
    """Returns the labels of the training set, IGNORED where they do not count."""
    if pred.targets is None:
        raise InputError("labels= needs a training set with labels: give pairs (input, label), or leave it out")
    return checked_targets(pred, None, None)


def _taught(pred: Prediction, temperature: float, distribution: bool) -> Tensor:
    """Returns the student's targets, ``[N, ...]``: for a distribution the mean of members' log probabilities."""
    if pred.task == "gaussian":
        mean, variance = (one if one.ndim > 2 else one[..., None] for one in (pred.members.mean, pred.members.variance))
        return torch.cat([mean.mean(0), variance.mean(0) + mean.var(0, correction=0)], 1).float()
    if pred.task == "regression":
        return pred.members.mean.mean(0).float()
    if pred.task != "classes":
        return pred.probs.float()
    probs = (pred.members.logits / temperature).softmax(2)
    if not distribution:
        return probs.mean(0).float()
    return ((1 - SMOOTHING) * probs + SMOOTHING / probs.shape[2]).log().mean(0).float()


@dataclass(frozen=True)
class Matching:
    """The student's loss, called as criterion(output, target): zero, or least, where it predicts what the ensemble does."""

    task: str
    temperature: float = 1.0
    labels: float = 0.0
    distribution: bool = False
    class_axis: int = 1

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """Returns the mean over examples; of pixels or tokens too."""
        if self.class_axis == -1:
            output, target = output.movedim(-1, 1), target.movedim(-1, 1)
        outputs, taught = output[0].numel(), (target[:, :-1] if self.labels else target)[0].numel()
        if outputs != taught:  # else one output would be compared with each
            raise InputError(f"the student has {outputs} outputs for an example, but the ensemble {taught}: give it as many")
        if self.task == "gaussian":
            mean, raw = output.chunk(2, 1)
            wanted, spread = target.chunk(2, 1)
            variance = variance_of(raw)
            return 0.5 * (variance.log() + (spread + (wanted - mean) ** 2) / variance).mean()
        if self.task == "regression":
            return F.mse_loss(output, target.reshape(output.shape))
        if self.task != "classes":
            return F.binary_cross_entropy_with_logits(output, target.reshape(output.shape))
        scaled = output / self.temperature
        if self.distribution:
            alpha = scaled.clamp(max=30).exp()
            normaliser = torch.lgamma(alpha).sum(1) - torch.lgamma(alpha.sum(1))
            return (normaliser - ((alpha - 1) * target).sum(1)).mean()
        soft, hard = (target[:, :-1], target[:, -1].long()) if self.labels else (target, None)
        entropies = torch.special.xlogy(soft, soft).sum(1)
        loss = self.temperature**2 * (entropies - (soft * scaled.log_softmax(1)).sum(1)).mean()
        if hard is None:
            return loss
        counted = (hard != IGNORED).sum().clamp(min=1)  # a batch may have no label that counts
        usual = F.cross_entropy(output, hard, ignore_index=IGNORED, reduction="sum") / counted
        return (1 - self.labels) * loss + self.labels * usual
