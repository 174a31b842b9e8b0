"""Data of the figures, from a row's predictions or from the evidence of its scores.

Each function returns None if the row lacks the data; the figure is then left out.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from multitudes.errors import InputError
from multitudes.prediction.prediction import Prediction
from multitudes.prediction.values import CLASSES
from multitudes.report.row import Row
from multitudes.scores import diversity
from multitudes.scores.columns import ood_criteria
from multitudes.scores.evidence import Columns

MOST = 100_000
"""Largest number of examples or pixels in a figure; of larger sets an evenly spaced part is shown."""

CRITERION = ("entropy", "variance", "msp")
"""OOD scores of the figures and the first table, in order of preference."""

LEVELS = tuple(level / 20 for level in range(1, 20))


def confidence_and_correct(row: Row) -> tuple[Tensor, Tensor] | None:
    """Returns (confidence ``[N]``, correct ``[N]``). Targets that are not classes, such as 255 for unlabelled, do not count."""
    pair = _of_prediction(row.prediction) if row.prediction is not None else None
    if pair is None and row.scores.evidence is not None and row.scores.task in CLASSES:
        columns = row.scores.evidence.columns
        pair = columns["confidence"], columns["correct"].bool()
    if pair is None or not len(pair[0]):
        return None
    return thinned(pair[0].double().cpu()), thinned(pair[1].cpu())


def _of_prediction(prediction: Prediction) -> tuple[Tensor, Tensor] | None:
    targets = prediction.targets
    if prediction.task not in CLASSES or targets is None or targets.numel() != prediction.labels.numel():
        return None
    flat = targets.flatten().cpu()
    valid = (flat >= 0) & (flat < prediction.classes)
    return prediction.confidence.flatten().cpu()[valid], (prediction.labels.flatten().cpu() == flat)[valid]


def ood_scores(row: Row, name: str) -> tuple[Tensor, Tensor, str] | None:
    """Returns OOD scores of the test set and of the OOD set `name`, and the name of the score."""
    inside: Columns = {}
    outside: Columns = {}
    if row.prediction is not None and name in row.ood:
        inside, outside = ood_criteria(row.prediction), ood_criteria(row.ood[name])
    elif row.scores.evidence is not None and name in row.scores.evidence.ood:
        inside, outside = row.scores.evidence.in_distribution, row.scores.evidence.ood[name]
    for criterion in CRITERION:
        if criterion in inside and criterion in outside and len(inside[criterion]) and len(outside[criterion]):
            return *(thinned(columns[criterion].double()) for columns in (inside, outside)), criterion  # type: ignore[return-value]
    return None


def ood_sets(row: Row) -> list[str]:
    """Returns the names of the OOD sets."""
    return list(row.ood) or list(row.scores.evidence.ood if row.scores.evidence is not None else ())


def member_differences(row: Row) -> Tensor | None:
    """Returns the difference of each pair of members ``[M, M]``: share of different labels, or RMS difference of means."""
    prediction = row.prediction
    if prediction is None or not prediction.has_members or prediction.count < 2 or not math.prod(prediction.shape):
        return None
    if prediction.task in CLASSES:
        return diversity.matrix(thinned(prediction.members.labels.flatten(1), 1).cpu())
    means = thinned(prediction.members.mean.flatten(1).double(), 1).cpu()
    return torch.stack([(means - one).square().mean(1).sqrt() for one in means])


def interval_coverage(row: Row) -> dict[float, float] | None:
    """Returns the share of targets inside central prediction intervals, by nominal level."""
    prediction = row.prediction
    if prediction is None or prediction.task in CLASSES or prediction.targets is None:
        return None
    few = prediction[thinned(torch.arange(len(prediction)), most=2000)]
    assert few.targets is not None
    if not len(few) or few.targets.numel() != math.prod(few.shape) or not bool((few.variance > 0).any()):
        return None
    targets, shares = few.targets.reshape(few.shape).cpu(), {}
    for level in LEVELS:
        try:
            low, high = (end.cpu() for end in few.interval(level))
        except InputError:
            return None
        shares[level] = float(((targets >= low) & (targets <= high)).double().mean())
    return shares


def thinned(values: Tensor, axis: int = 0, most: int = MOST) -> Tensor:
    """Returns at most `most` values, evenly spaced along an axis."""
    count = values.shape[axis]
    return values if count <= most else values.index_select(axis, torch.linspace(0, count - 1, most).long())
