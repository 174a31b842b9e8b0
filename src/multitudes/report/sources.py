"""Evidence: what figures are drawn from, out of a row's predictions, or of what its scores were counted from.

What a row does not have is None: a figure then does without it.
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
"""Examples or pixels that a figure is drawn from; of more, evenly spaced ones are taken."""

CRITERION = ("entropy", "variance", "msp")
"""By what figures and the first table tell what is out of distribution: the first of these that there is."""

LEVELS = tuple(level / 20 for level in range(1, 20))


def confidence_and_correct(row: Row) -> tuple[Tensor, Tensor] | None:
    """Confidences and whether they came true; targets that are no class, such as 255 for no label, do not count."""
    found = _of_prediction(row.prediction) if row.prediction is not None else None
    if found is None and row.scores.evidence is not None and row.scores.task in CLASSES:
        columns = row.scores.evidence.columns
        found = columns["confidence"], columns["correct"].bool()
    if found is None or not len(found[0]):
        return None
    return thinned(found[0].double().cpu()), thinned(found[1].cpu())


def _of_prediction(prediction: Prediction) -> tuple[Tensor, Tensor] | None:
    targets = prediction.targets
    if prediction.task not in CLASSES or targets is None or targets.numel() != prediction.labels.numel():
        return None
    wanted = targets.flatten().cpu()
    kept = (wanted >= 0) & (wanted < prediction.classes)
    return prediction.confidence.flatten().cpu()[kept], (prediction.labels.flatten().cpu() == wanted)[kept]


def ood_scores(row: Row, name: str) -> tuple[Tensor, Tensor, str] | None:
    """How much examples in and out of distribution look out of it, and by which criterion."""
    inside: Columns = {}
    outside: Columns = {}
    if row.prediction is not None and name in row.ood:
        inside, outside = ood_criteria(row.prediction), ood_criteria(row.ood[name])
    elif row.scores.evidence is not None and name in row.scores.evidence.ood:
        inside, outside = row.scores.evidence.inside, row.scores.evidence.ood[name]
    for criterion in CRITERION:
        if criterion in inside and criterion in outside and len(inside[criterion]) and len(outside[criterion]):
            return *(thinned(columns[criterion].double()) for columns in (inside, outside)), criterion  # type: ignore[return-value]
    return None


def ood_sets(row: Row) -> list[str]:
    """The names of sets out of distribution."""
    return list(row.ood) or list(row.scores.evidence.ood if row.scores.evidence is not None else ())


def member_differences(row: Row) -> Tensor | None:
    """By how much members differ, two by two ``[M, M]``: how often their labels do, or the root mean square of means."""
    prediction = row.prediction
    if prediction is None or not prediction.has_members or prediction.count < 2 or not math.prod(prediction.shape):
        return None
    if prediction.task in CLASSES:
        return diversity.matrix(thinned(prediction.members.labels.flatten(1), 1).cpu())
    means = thinned(prediction.members.mean.flatten(1).double(), 1).cpu()
    return torch.stack([(means - one).square().mean(1).sqrt() for one in means])


def interval_coverage(row: Row) -> dict[float, float] | None:
    """How many targets lie inside of central intervals, by the share of the mixture that these hold."""
    prediction = row.prediction
    if prediction is None or prediction.task in CLASSES or prediction.targets is None:
        return None
    few = prediction[thinned(torch.arange(len(prediction)), most=2000)]
    assert few.targets is not None
    if not len(few) or few.targets.numel() != math.prod(few.shape) or not bool((few.variance > 0).any()):
        return None
    wanted, found = few.targets.reshape(few.shape).cpu(), {}
    for level in LEVELS:
        try:
            low, high = (end.cpu() for end in few.interval(level))
        except InputError:
            return None
        found[level] = float(((wanted >= low) & (wanted <= high)).double().mean())
    return found


def thinned(values: Tensor, axis: int = 0, most: int = MOST) -> Tensor:
    """At most so many of them, evenly spaced along an axis."""
    count = values.shape[axis]
    return values if count <= most else values.index_select(axis, torch.linspace(0, count - 1, most).long())
